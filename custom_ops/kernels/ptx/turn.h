#pragma once

// A word in global memory that blocks read and write while others do. PTX ISA 8.x, section 8
// (memory consistency) and 9.7.9.

#include <cstdint>

namespace flashmask::ptx {

// Nothing comes before or after, but the word is whole.
__device__ __forceinline__ int32_t LoadRelaxed(const int32_t* word) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(word) : "memory");
  return value;
}

__device__ __forceinline__ void StoreRelaxed(int32_t* word, int32_t value) {
  asm volatile("st.relaxed.gpu.global.s32 [%0], %1;\n" ::"l"(word), "r"(value) : "memory");
}

// What others did before they wrote the value that is read comes before all that follows.
__device__ __forceinline__ int32_t LoadAcquire(const int32_t* word) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// What was done before this, also by those a barrier stood behind, is seen by who reads the value.
__device__ __forceinline__ void StoreRelease(int32_t* word, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(word), "r"(value) : "memory");
}

}  // namespace flashmask::ptx
