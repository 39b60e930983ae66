#pragma once

// Single instructions of the sm90a backward that are no products and no copies.

#include "kernels/common/device_math.cuh"

#include <cstdint>

namespace flashmask::sm90a {

__device__ __forceinline__ void StoreSharedQuad(uint32_t shared,
                                                float a,
                                                float b,
                                                float c,
                                                float d) {
  asm volatile(
      "st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
}

__device__ __forceinline__ int32_t LoadAcquire(const int32_t* from) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void StoreRelease(int32_t* to, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;\n" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void AddRelease(int32_t* to, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(to), "r"(value) : "memory");
}

// The sum of products of eight pairs of 16-bit elements.
template <typename Element>
__device__ __forceinline__ float Dot8(const uint4& left, const uint4& right) {
  const uint32_t a[4] = {left.x, left.y, left.z, left.w};
  const uint32_t b[4] = {right.x, right.y, right.z, right.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = Unpack<Element>(a[i]);
    const float2 y = Unpack<Element>(b[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

// Orders accesses to global memory of the copy engine and of this thread.
__device__ __forceinline__ void FenceProxyGlobal() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

}  // namespace flashmask::sm90a
