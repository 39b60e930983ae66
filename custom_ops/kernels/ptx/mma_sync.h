#pragma once

// c += a b for a 16x16 by 16x8 product with sums in float. PTX ISA 8.x, section 9.7.14.5.8.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace flashmask::ptx {

template <typename Element>
__device__ __forceinline__ void MmaM16N8K16(float (&c)[4],
                                            const uint32_t (&a)[4],
                                            uint32_t b0,
                                            uint32_t b1);

template <>
__device__ __forceinline__ void MmaM16N8K16<__nv_bfloat16>(float (&c)[4],
                                                           const uint32_t (&a)[4],
                                                           uint32_t b0,
                                                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void MmaM16N8K16<__half>(float (&c)[4],
                                                    const uint32_t (&a)[4],
                                                    uint32_t b0,
                                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace flashmask::ptx
