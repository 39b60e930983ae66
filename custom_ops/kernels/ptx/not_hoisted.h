#pragma once

namespace flashmask::ptx {

// The value, which the compiler takes for a new one at every call, so that what follows from it is
// not worked out ahead of a loop.
__device__ __forceinline__ int NotHoisted(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace flashmask::ptx
