#ifdef FLASHMASK_SM90A

#include "core/kernel_registry.h"
#include "kernels/sm90a/backward_wide_launch.cuh"

namespace flashmask::sm90a {
namespace {

constexpr int kHeadDim = 192;

const KernelRegistration kRegistration({"sm90a",
                                        Device::kCuda,
                                        90,
                                        90,
                                        {DataType::kFloat16, DataType::kBFloat16},
                                        8,
                                        kHeadDim,
                                        nullptr,
                                        WideBackward<kHeadDim>,
                                        nullptr,
                                        WideBackwardWorkspace});

}  // namespace
}  // namespace flashmask::sm90a

#endif  // FLASHMASK_SM90A
