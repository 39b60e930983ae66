#pragma once

// Single instructions of the sm90a backward that are no products and no copies.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Element>
__device__ __forceinline__ uint32_t Pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t Pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <>
__device__ __forceinline__ uint32_t Pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <typename Element>
__device__ __forceinline__ float2 Unpack(uint32_t pair);

template <>
__device__ __forceinline__ float2 Unpack<__nv_bfloat16>(uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

template <>
__device__ __forceinline__ float2 Unpack<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// 2^x; 0 below 2^-126. PTX ISA 8.x, section 9.7.3.21.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

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

// Orders accesses to global memory of the copy engine and of this thread.
__device__ __forceinline__ void FenceProxyGlobal() {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

}  // namespace flashmask::sm90a
