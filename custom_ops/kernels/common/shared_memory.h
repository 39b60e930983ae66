#pragma once

#include "core/diagnostics.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"

#include <cuda_runtime.h>

#include <algorithm>
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

// What a multiprocessor keeps for itself of the shared memory of each block.
constexpr int kReservedSharedBytes = 1024;

// Bytes of shared memory that kernels choose their tiles by.
struct SharedMemorySizes {
  int of_block = 0;
  int of_multiprocessor = 0;

  // Whether a multiprocessor holds so many blocks with so many bytes each.
  bool Holds(int blocks, int bytes) const {
    return bytes <= of_block && blocks * (bytes + kReservedSharedBytes) <= of_multiprocessor;
  }
};

// What the device has, or less where diagnostics limit it.
inline Status FindSharedMemory(int device, SharedMemorySizes* found) {
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaDeviceGetAttribute(&found->of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  FLASHMASK_RETURN_IF_CUDA_FAILS(cudaDeviceGetAttribute(&found->of_multiprocessor,
                                                        cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                                                        device));
  const int limit = SharedMemoryOfBlocks();
  found->of_block = std::min(found->of_block, limit);
  found->of_multiprocessor = std::min(found->of_multiprocessor, limit + kReservedSharedBytes);
  return Status::Ok();
}

}  // namespace flashmask
