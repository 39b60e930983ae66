#pragma once

// Arithmetic of one instruction. PTX ISA 8.x, sections 9.7.1.28, 9.7.3.21 and 9.7.9.7.

#include <cstdint>

namespace flashmask::ptx {

// 2^x; 0 below 2^-126.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

// `count` bits from bit `begin` on, as far as there are any.
__device__ __forceinline__ uint32_t BitMask(int32_t begin, int32_t count) {
  uint32_t bits;
  asm("bmsk.clamp.b32 %0, %1, %2;\n" : "=r"(bits) : "r"(begin), "r"(count));
  return bits;
}

// Byte i is that of the eight of `low` and `high` which digit i (4 bits) of `selector` names, or,
// with 8 added to the name, that byte's sign in all bits.
__device__ __forceinline__ uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

}  // namespace flashmask::ptx
