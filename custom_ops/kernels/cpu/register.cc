#include "core/kernel_registry.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/forward.h"
#include "kernels/cpu/tile_config.h"

namespace flashmask::cpu {
namespace {

// Only running out of memory throws here, and then ending the process is right.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
const KernelRegistration kRegistration(
    {"cpu",
     Device::kCpu,
     0,
     kNewestCapability,
     {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16},
     kHeadDimMultiple,
     kMaxHeadDim,
     Forward,
     Backward,
     nullptr,
     nullptr});

}  // namespace
}  // namespace flashmask::cpu
