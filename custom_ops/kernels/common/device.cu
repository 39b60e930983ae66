#include "core/device_query.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

namespace flashmask {
namespace {

Status QueryComputeCapability(int32_t device, int32_t* compute_capability) {
  int major = 0;
  int minor = 0;
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  *compute_capability = 10 * major + minor;
  return Status::Ok();
}

const DeviceQueryRegistration kRegistration(QueryComputeCapability);

}  // namespace
}  // namespace flashmask
