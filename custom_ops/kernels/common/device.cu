#include "core/device_query.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace flashmask {
namespace {

// Asked of the driver once a device: 0 is not yet known.
constexpr int32_t kRemembered = 64;
std::atomic<int32_t> known[kRemembered];

Status QueryComputeCapability(int32_t device, int32_t* compute_capability) {
  const bool has_place = device >= 0 && device < kRemembered;
  if (has_place) *compute_capability = known[device].load(std::memory_order_relaxed);
  if (has_place && *compute_capability != 0) return Status::Ok();
  int major = 0;
  int minor = 0;
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  *compute_capability = 10 * major + minor;
  if (has_place) known[device].store(*compute_capability, std::memory_order_relaxed);
  return Status::Ok();
}

const DeviceQueryRegistration kRegistration(QueryComputeCapability);

}  // namespace
}  // namespace flashmask
