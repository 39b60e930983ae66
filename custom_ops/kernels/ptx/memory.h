#pragma once

// Shared memory by its address, and additions to global memory. PTX ISA 8.x, sections 9.7.9.8,
// 9.7.9.12 and 9.7.13.6.

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::ptx {

__device__ __forceinline__ void StoreShared(uint32_t shared, uint32_t data) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(shared), "r"(data) : "memory");
}

// To a multiple of 16 bytes.
__device__ __forceinline__ void StoreSharedQuad(uint32_t shared,
                                                float a,
                                                float b,
                                                float c,
                                                float d) {
  asm volatile(
      "st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
}

// From a multiple of 16 bytes.
__device__ __forceinline__ uint4 LoadSharedQuad(uint32_t shared) {
  uint4 data;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(data.x), "=r"(data.y), "=r"(data.z), "=r"(data.w)
               : "r"(shared)
               : "memory");
  return data;
}

// Adds four floats to global memory, 16-byte aligned; the vector form is sm_90's.
__device__ __forceinline__ void ReduceAdd4(float* to, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(to),
               "f"(values[0]),
               "f"(values[1]),
               "f"(values[2]),
               "f"(values[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, values[i]);
#endif
}

}  // namespace flashmask::ptx
