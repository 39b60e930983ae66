#pragma once

#include "core/status.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

namespace flashmask {

// Makes a device current for a scope and restores the one before. Check `status` first.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : status_(MakeCurrent(device)) {}
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const Status& status() const { return status_; }

 private:
  Status MakeCurrent(int device) {
    FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetDevice(&before_));
    if (before_ == device) return Status::Ok();
    FLASHMASK_RETURN_IF_CUDA_FAILS(cudaSetDevice(device));
    changed_ = true;
    return Status::Ok();
  }

  int before_ = 0;
  bool changed_ = false;
  Status status_;  // after what its maker sets
};

inline Status FindMultiprocessors(int device, int* count) {
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device));
  return Status::Ok();
}

}  // namespace flashmask
