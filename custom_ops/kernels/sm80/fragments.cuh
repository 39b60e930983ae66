#pragma once

// Operands of m16n8k16 products between registers and swizzled shared tiles.
//
// Of a 16x8 float product, thread t of a warp holds row t / 4 (values 0 and 1) and row t / 4 + 8
// (values 2 and 3), columns 2 (t % 4) and the next. PTX ISA 8.x, section 9.7.14.5.8.

#include "kernels/common/device_math.cuh"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/mma_sync.h"
#include "kernels/sm80/shared_tile.cuh"

#include <cstdint>

namespace flashmask::sm80 {

// Where in a tile a lane's part of an operand starts. Depth and columns are stepped through by an
// exclusive or within a segment of the swizzle and by an addition from one to the next: one
// register serves all steps.

// Left operand, 16 rows by 16 of depth, from row `row` of the tile.
template <int kHeadDim>
__device__ __forceinline__ uint32_t LeftAddress(uint32_t tile, int row, int lane) {
  return tile + TileOffset<kHeadDim>(row + lane % 16, lane / 16);
}

// Left operand whose rows are 16 columns of the tile, from chunk `chunk`, depth its first 16 rows;
// to be loaded transposed.
template <int kHeadDim>
__device__ __forceinline__ uint32_t LeftTransposedAddress(uint32_t tile, int chunk, int lane) {
  return tile + TileOffset<kHeadDim>(lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2);
}

// Two right operands whose result columns are the tile's first 16 rows, 16 of depth.
template <int kHeadDim>
__device__ __forceinline__ uint32_t RightRowsAddress(uint32_t tile, int lane, int row = 0) {
  return tile + TileOffset<kHeadDim>(row + lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

// Two right operands whose depth is the tile's first 16 rows, 16 result columns.
template <int kHeadDim>
__device__ __forceinline__ uint32_t RightColumnsAddress(uint32_t tile, int lane, int chunk = 0) {
  return tile + TileOffset<kHeadDim>(lane % 16, chunk + lane / 16);
}

// Address `rows` (a multiple of 8) further down the tile and `chunks` of 8 elements further along
// its rows; within its segment the address has none of the bits of `chunks`.
template <int kHeadDim>
__device__ __forceinline__ uint32_t Step(uint32_t address, int rows, int chunks) {
  const int within = chunks % kSegmentChunks<kHeadDim>;
  return (address ^ static_cast<uint32_t>(within * 16)) +
         static_cast<uint32_t>((chunks - within) * 16 + rows * kHeadDim * 2);
}

// Which chunks of a row of kHeadDim elements are a warp's, of kColumnWarps that share it: one run,
// or, where that would start or end within a segment, the same run of every segment.
template <int kHeadDim, int kColumnWarps>
struct WarpChunks {
  static constexpr int kSegment = kSegmentChunks<kHeadDim>;
  static constexpr int kCount = kHeadDim / kChunkElements / kColumnWarps;
  static constexpr bool kOneRun = kCount % kSegment == 0 || kSegment % kCount == 0;
  static constexpr int kRun = kOneRun ? kCount : kSegment / kColumnWarps;
  static_assert(kRun % 2 == 0 && kCount % kRun == 0, "operands are loaded in pairs of chunks");

  static __device__ __forceinline__ constexpr int First(int column_warp) {
    return column_warp * kRun;
  }

  // From the warp's first chunk to its chunk number `i`.
  static __device__ __forceinline__ constexpr int Step(int i) {
    return i / kRun * kSegment + i % kRun;
  }
};

// Two neighbouring 16x8 results as a 16x16 left operand.
template <typename Element>
__device__ __forceinline__ void LeftFromSums(const float (&first)[4],
                                             const float (&second)[4],
                                             uint32_t (&a)[4]) {
  a[0] = Pack<Element>(first[0], first[1]);
  a[1] = Pack<Element>(first[2], first[3]);
  a[2] = Pack<Element>(second[0], second[1]);
  a[3] = Pack<Element>(second[2], second[3]);
}

__device__ __forceinline__ void Clear(float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
}

__device__ __forceinline__ void Negate(float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = -sums[i];
}

// Over the four threads that hold a row.
__device__ __forceinline__ float QuadMax(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float QuadSum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// result = rows of one tile times rows of another, over the whole head dim; `left` is a
// LeftAddress, `right` a RightRowsAddress. `beside(k)` is worked out between the steps of 16.
template <typename Element, int kHeadDim, int kRowTiles, int kColumnTiles, typename Beside>
__device__ __forceinline__ void MultiplyRows(uint32_t left,
                                             uint32_t right,
                                             float (&result)[kRowTiles][kColumnTiles][4],
                                             Beside beside) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) Clear(result[r][n]);
  }
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      ptx::LdMatrixX4(a[r], Step<kHeadDim>(left, r * 16, 2 * k));
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      uint32_t b[4];
      ptx::LdMatrixX4(b, Step<kHeadDim>(right, n * 8, 2 * k));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        ptx::MmaM16N8K16<Element>(result[r][n], a[r], b[0], b[1]);
        ptx::MmaM16N8K16<Element>(result[r][n + 1], a[r], b[2], b[3]);
      }
    }
    beside(k);
  }
}

// sums += a b over 16 of depth, from row `row` of b on, for a warp's chunks of its columns; `right`
// is b's RightColumnsAddress.
template <typename Element, int kHeadDim, typename Chunks, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void AddDepth(float (&sums)[kRowTiles][kColumnTiles][4],
                                         const uint32_t (&a)[kRowTiles][4],
                                         uint32_t right,
                                         int row) {
#pragma unroll
  for (int d = 0; d < kColumnTiles; d += 2) {
    uint32_t b[4];
    ptx::LdMatrixX4Trans(b, Step<kHeadDim>(right, row, Chunks::Step(d)));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      ptx::MmaM16N8K16<Element>(sums[r][d], a[r], b[0], b[1]);
      ptx::MmaM16N8K16<Element>(sums[r][d + 1], a[r], b[2], b[3]);
    }
  }
}

// `column` is lower begin, lower end, upper begin, upper end. With half lines the lower interval
// reaches to the last row and the upper one starts at the first.
template <bool kHalfLines>
__device__ __forceinline__ bool IsMaskedRow(int4 column, int32_t row) {
  if (kHalfLines) return row >= column.x || row < column.w;
  return (row >= column.x && row < column.y) || (row >= column.z && row < column.w);
}

}  // namespace flashmask::sm80
