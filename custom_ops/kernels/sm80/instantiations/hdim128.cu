#include "core/kernel_registry.h"
#include "kernels/common/built_code.h"
#include "kernels/sm80/backward_launch.cuh"
#include "kernels/sm80/few_rows.h"
#include "kernels/sm80/forward_launch.cuh"

namespace flashmask::sm80 {
namespace {

constexpr int kHeadDim = 128;

const KernelRegistration kRegistration({"sm80",
                                        Device::kCuda,
                                        80,
                                        kNewestCapability,
                                        {DataType::kFloat16, DataType::kBFloat16},
                                        8,
                                        kHeadDim,
                                        Forward<kHeadDim>,
                                        Backward<kHeadDim>,
                                        ForwardWorkspace<kHeadDim>,
                                        BackwardWorkspace<kHeadDim>,
                                        HasFewRowsOfManyKeys,
                                        kBuiltCode});

}  // namespace
}  // namespace flashmask::sm80
