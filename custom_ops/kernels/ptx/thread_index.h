#pragma once

namespace flashmask::ptx {

// threadIdx.x, read where it is used: kept over a loop it would take a register.
__device__ __forceinline__ int ThreadIndex() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

}  // namespace flashmask::ptx
