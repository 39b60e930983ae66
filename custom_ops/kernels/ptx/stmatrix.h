#pragma once

// Stores of a warp to shared memory. PTX ISA 8.x, section 9.7.14.5.16.

#include <cstdint>

namespace flashmask::ptx {

// Four 8x8 matrices of 16-bit elements from a warp; lane i gives the address of row i % 8 of matrix
// i / 8.
__device__ __forceinline__ void StMatrixX4(uint32_t shared,
                                           uint32_t m0,
                                           uint32_t m1,
                                           uint32_t m2,
                                           uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(shared),
               "r"(m0),
               "r"(m1),
               "r"(m2),
               "r"(m3)
               : "memory");
}

}  // namespace flashmask::ptx
