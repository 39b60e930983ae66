#pragma once

// Products of a warpgroup: d (64 x N, float, in registers) += a (64 x 16) b (16 x N). PTX ISA 8.x,
// section 9.7.15.
//
// Element i of `sums` is row 16 * warp + lane / 4 + 8 * (i / 2 % 2) and column 8 * (i / 4) +
// 2 * (lane % 4) + i % 2. As left operand in registers, rows are the same and a register holds two
// neighbouring columns.

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

namespace flashmask::ptx {

// Whether ptxas serialises products if a register that one of them names was never written, though
// what it holds does not matter: so those before CUDA 12.9 do.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 9)
constexpr bool kMustWriteOperands = false;
#else
constexpr bool kMustWriteOperands = true;
#endif

// Before the first product that reads registers or shared memory written since the last one.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most `kPending` committed groups are under way.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Says that nobody uses what products give until the next commit, so that they may read what others
// write. Nothing here; tests/emulator has a version of its own.
__device__ __forceinline__ void WgmmaUnused() {}

// Keeps the compiler from moving uses of `sums` across: it does not know what a wait waits for.
template <int kCount>
__device__ __forceinline__ void WgmmaPin(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Gives registers a value of no interest: a product that starts anew still names them as inputs,
// and what they held would be kept for it.
template <int kCount>
__device__ __forceinline__ void WgmmaDefine(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (kMustWriteOperands) {
      sums[i] = 0.0f;
    } else {
      asm volatile("" : "=f"(sums[i]));
    }
  }
}

// Describes a tile in shared memory that was stored with the 128-byte swizzle: rows of 64 elements
// (128 bytes), 8 rows to a pattern, which starts at a multiple of 1024 bytes. `stride` is the
// distance in bytes of 8-row patterns; `leading` of neighbouring blocks of 64 columns, used where
// the tile's columns are the operand's M or N (see `kTransposed` below).
__device__ __forceinline__ uint64_t SwizzledTile(uint32_t shared,
                                                 uint32_t leading,
                                                 uint32_t stride = 1024) {
  constexpr uint32_t kSwizzle128 = 1u << 30;
  const uint32_t low = (shared >> 4) + (leading >> 4 << 16);  // addresses have 18 bits
  const uint32_t high = stride >> 4 | kSwizzle128;
  return uint64_t{high} << 32 | low;
}

// The same kind of tile `bytes` (a multiple of 16) further on. The address stays in its bits, so
// that half of the description is left alone: a third of the instructions of a 64-bit sum.
__device__ __forceinline__ uint64_t Shift(uint64_t tile, int bytes) {
  const uint32_t low = static_cast<uint32_t>(tile) + static_cast<uint32_t>(bytes / 16);
  return (tile >> 32 << 32) | low;
}

#define FLASHMASK_SUMS_8(sums, i)                                                            \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), \
      "+f"(sums[i + 5]), "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define FLASHMASK_SUMS_32(sums, i)                                                          \
  FLASHMASK_SUMS_8(sums, i), FLASHMASK_SUMS_8(sums, i + 8), FLASHMASK_SUMS_8(sums, i + 16), \
      FLASHMASK_SUMS_8(sums, i + 24)
#define FLASHMASK_SUMS_OF_48(sums) \
  FLASHMASK_SUMS_8(sums, 0), FLASHMASK_SUMS_8(sums, 8), FLASHMASK_SUMS_8(sums, 16)
#define FLASHMASK_SUMS_OF_64(sums) FLASHMASK_SUMS_32(sums, 0)
#define FLASHMASK_SUMS_OF_96(sums) \
  FLASHMASK_SUMS_32(sums, 0), FLASHMASK_SUMS_8(sums, 32), FLASHMASK_SUMS_8(sums, 40)
#define FLASHMASK_SUMS_OF_128(sums) FLASHMASK_SUMS_32(sums, 0), FLASHMASK_SUMS_32(sums, 32)
#define FLASHMASK_SUMS_OF_192(sums) FLASHMASK_SUMS_OF_128(sums), FLASHMASK_SUMS_32(sums, 64)
#define FLASHMASK_SUMS_OF_256(sums) FLASHMASK_SUMS_OF_192(sums), FLASHMASK_SUMS_32(sums, 96)

#define FLASHMASK_REGISTERS_OF_48                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23"
#define FLASHMASK_REGISTERS_OF_64                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FLASHMASK_REGISTERS_OF_96 \
  FLASHMASK_REGISTERS_OF_64       \
  ", "                            \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FLASHMASK_REGISTERS_OF_128                                                   \
  FLASHMASK_REGISTERS_OF_64                                                          \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FLASHMASK_REGISTERS_OF_192                                                   \
  FLASHMASK_REGISTERS_OF_128                                                         \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FLASHMASK_REGISTERS_OF_256                                                   \
  FLASHMASK_REGISTERS_OF_192                                                         \
  ", "                                                                               \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "   \
  "%123, %124, %125, %126, %127"

// N: columns. The numbers after it are those of the operands behind the sums.
#define FLASHMASK_WGMMA_SHARED(N, TYPE, A, B, KEEP, TA, TB)                                       \
  "{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                                                \
  ", 0;\n"                                                                                        \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FLASHMASK_REGISTERS_OF_##N \
      "}, %" #A ", %" #B ", keep, 1, 1, %" #TA ", %" #TB ";\n}\n"
#define FLASHMASK_WGMMA_REGISTERS(N, TYPE, A0, A1, A2, A3, B, KEEP, TB)                           \
  "{\n.reg .pred keep;\nsetp.ne.b32 keep, %" #KEEP                                                \
  ", 0;\n"                                                                                        \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" FLASHMASK_REGISTERS_OF_##N \
      "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", keep, 1, 1, %" #TB ";\n}\n"

// One statement for each type of elements.
#define FLASHMASK_DO_WGMMA_SHARED(N, ...)                                                   \
  if constexpr (kBFloat16) {                                                                \
    asm volatile(                                                                           \
        FLASHMASK_WGMMA_SHARED(N, "bf16", __VA_ARGS__)                                      \
        : FLASHMASK_SUMS_OF_##N(sums)                                                       \
        : "l"(a), "l"(b), "r"(keep), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0)); \
  } else {                                                                                  \
    asm volatile(                                                                           \
        FLASHMASK_WGMMA_SHARED(N, "f16", __VA_ARGS__)                                       \
        : FLASHMASK_SUMS_OF_##N(sums)                                                       \
        : "l"(a), "l"(b), "r"(keep), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0)); \
  }
#define FLASHMASK_DO_WGMMA_REGISTERS(N, ...)                                                 \
  if constexpr (kBFloat16) {                                                                 \
    asm volatile(                                                                            \
        FLASHMASK_WGMMA_REGISTERS(N, "bf16", __VA_ARGS__)                                    \
        : FLASHMASK_SUMS_OF_##N(sums)                                                        \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep), "n"(kTransposedB ? 1 : 0)); \
  } else {                                                                                   \
    asm volatile(                                                                            \
        FLASHMASK_WGMMA_REGISTERS(N, "f16", __VA_ARGS__)                                     \
        : FLASHMASK_SUMS_OF_##N(sums)                                                        \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep), "n"(kTransposedB ? 1 : 0)); \
  }

// A tile is transposed if the sum runs over its rows, not over its columns. `keep` is 0 to start
// sums anew.
template <typename Element, int kColumns, bool kTransposedA, bool kTransposedB>
__device__ __forceinline__ void WgmmaShared(float (&sums)[kColumns / 2],
                                            uint64_t a,
                                            uint64_t b,
                                            int32_t keep) {
  static_assert(kColumns == 48 || kColumns == 64 || kColumns == 128, "written for these only");
  constexpr bool kBFloat16 = std::is_same_v<Element, __nv_bfloat16>;
  if constexpr (kColumns == 48) {
    FLASHMASK_DO_WGMMA_SHARED(48, 24, 25, 26, 27, 28)
  } else if constexpr (kColumns == 64) {
    FLASHMASK_DO_WGMMA_SHARED(64, 32, 33, 34, 35, 36)
  } else if constexpr (kColumns == 128) {
    FLASHMASK_DO_WGMMA_SHARED(128, 64, 65, 66, 67, 68)
  }
}

// The left operand in registers.
template <typename Element, int kColumns, bool kTransposedB>
__device__ __forceinline__ void WgmmaRegisters(float (&sums)[kColumns / 2],
                                               uint32_t a0,
                                               uint32_t a1,
                                               uint32_t a2,
                                               uint32_t a3,
                                               uint64_t b,
                                               int32_t keep) {
  static_assert(
      kColumns == 64 || kColumns == 96 || kColumns == 128 || kColumns == 192 || kColumns == 256,
      "written for these only");
  constexpr bool kBFloat16 = std::is_same_v<Element, __nv_bfloat16>;
  if constexpr (kColumns == 64) {
    FLASHMASK_DO_WGMMA_REGISTERS(64, 32, 33, 34, 35, 36, 37, 38)
  } else if constexpr (kColumns == 96) {
    FLASHMASK_DO_WGMMA_REGISTERS(96, 48, 49, 50, 51, 52, 53, 54)
  } else if constexpr (kColumns == 128) {
    FLASHMASK_DO_WGMMA_REGISTERS(128, 64, 65, 66, 67, 68, 69, 70)
  } else if constexpr (kColumns == 192) {
    FLASHMASK_DO_WGMMA_REGISTERS(192, 96, 97, 98, 99, 100, 101, 102)
  } else {
    FLASHMASK_DO_WGMMA_REGISTERS(256, 128, 129, 130, 131, 132, 133, 134)
  }
}

#undef FLASHMASK_SUMS_8
#undef FLASHMASK_SUMS_32
#undef FLASHMASK_SUMS_OF_48
#undef FLASHMASK_SUMS_OF_64
#undef FLASHMASK_SUMS_OF_96
#undef FLASHMASK_SUMS_OF_128
#undef FLASHMASK_SUMS_OF_192
#undef FLASHMASK_SUMS_OF_256
#undef FLASHMASK_REGISTERS_OF_48
#undef FLASHMASK_REGISTERS_OF_64
#undef FLASHMASK_REGISTERS_OF_96
#undef FLASHMASK_REGISTERS_OF_128
#undef FLASHMASK_REGISTERS_OF_192
#undef FLASHMASK_REGISTERS_OF_256
#undef FLASHMASK_WGMMA_SHARED
#undef FLASHMASK_WGMMA_REGISTERS
#undef FLASHMASK_DO_WGMMA_SHARED
#undef FLASHMASK_DO_WGMMA_REGISTERS

}  // namespace flashmask::ptx
