#pragma once

#include "core/status.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

namespace flashmask {

// Makes a device current for a scope and restores the one before. Check `status` first.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    status_ = CudaStatus(cudaGetDevice(&before_), "cudaGetDevice");
    if (status_.ok() && before_ != device) {
      status_ = CudaStatus(cudaSetDevice(device), "cudaSetDevice");
      changed_ = status_.ok();
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  const Status& status() const { return status_; }

 private:
  Status status_ = Status::Ok();
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace flashmask
