#pragma once

namespace flashmask::ptx {

// The value, which the compiler takes for a new one at every call, so that what follows from it is
// not worked out ahead of a loop.
__device__ __forceinline__ int NotHoisted(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// What follows is not begun before what stands above: ptxas moves instructions, waits too, up to
// the last branch. `never` is false, which the compiler must not know.
__device__ __forceinline__ void StayBehind(bool never) {
  if (never) asm volatile("trap;");
}

}  // namespace flashmask::ptx
