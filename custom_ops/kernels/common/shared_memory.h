#pragma once

#include "core/status.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace flashmask {

// Lets a kernel have more shared memory than the usual 48 KB; asked of the driver once a device,
// since each question costs host time. One object for each kernel.
class SharedMemoryLimit {
 public:
  Status Raise(const void* kernel, int bytes, int device) {
    constexpr int kRemembered = 64;
    const uint64_t bit = device < kRemembered ? uint64_t{1} << device : 0;
    if ((raised_.load(std::memory_order_relaxed) & bit) != 0) return Status::Ok();
    FLASHMASK_RETURN_IF_CUDA_FAILS(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    raised_.fetch_or(bit, std::memory_order_relaxed);
    return Status::Ok();
  }

 private:
  std::atomic<uint64_t> raised_{0};
};

}  // namespace flashmask
