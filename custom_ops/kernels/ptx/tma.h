#pragma once

// Copies by the copy engine between global and shared memory. PTX ISA 8.x, section 9.7.9.25.5.

#include <cuda.h>

#include <cstdint>

namespace flashmask::ptx {

// The box of `map` at (column, head, row, batch) to shared memory; completes on `barrier` with the
// bytes of a whole box. What lies outside of the tensor comes as zero.
__device__ __forceinline__ void TmaLoad4d(uint32_t shared,
                                          const CUtensorMap* map,
                                          int32_t column,
                                          int32_t head,
                                          int32_t row,
                                          int32_t batch,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(shared),
      "l"(map),
      "r"(column),
      "r"(head),
      "r"(row),
      "r"(batch),
      "r"(barrier)
      : "memory");
}

// `bytes` (a multiple of 16, as are both addresses) to shared memory; completes on `barrier`.
__device__ __forceinline__ void BulkLoad(uint32_t shared,
                                         const void* global,
                                         uint32_t bytes,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(shared),
      "l"(global),
      "r"(bytes),
      "r"(barrier)
      : "memory");
}

// `bytes` from shared to global memory.
__device__ __forceinline__ void BulkStore(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global),
               "r"(shared),
               "r"(bytes)
               : "memory");
}

// Adds `bytes` of floats from shared to global memory.
__device__ __forceinline__ void BulkReduceAdd(float* global, uint32_t shared, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(global),
      "r"(shared),
      "r"(bytes)
      : "memory");
}

__device__ __forceinline__ void BulkCommit() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Waits until at most `kPending` committed groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void BulkWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

// Waits until at most `kPending` committed groups of this thread are under way at all.
template <int kPending>
__device__ __forceinline__ void BulkWait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Orders this thread's stores to shared memory before later reads of the copy engine and of wgmma.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Orders accesses to global memory of the copy engine and of this thread.
__device__ __forceinline__ void FenceProxyGlobal() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

}  // namespace flashmask::ptx
