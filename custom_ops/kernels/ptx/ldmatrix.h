#pragma once

// Four 8x8 matrices of 16-bit elements from shared memory to a warp. PTX ISA 8.x,
// section 9.7.14.5.15.

#include <cstdint>

namespace flashmask::ptx {

__device__ __forceinline__ void LdMatrixX4(uint32_t (&to)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared));
}

__device__ __forceinline__ void LdMatrixX4Trans(uint32_t (&to)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared));
}

}  // namespace flashmask::ptx
