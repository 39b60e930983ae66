#pragma once

// Products of a warpgroup over swizzled tiles with rows of kHeadDim columns. Tiles are given by
// their shared address; their blocks of 64 columns follow each other. Nothing is committed here.

#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

// Bytes from a block of 64 columns of a tile of 64 rows to the next.
constexpr int kSquareBlock = 64 * kSwizzleBytes;

// Of the products along the head dim, 16 columns each, every which one has its left operand in
// registers: with kHeld of them spread evenly, shared memory is asked for the others evenly.
template <int kHeadDim, int kHeld>
constexpr int kHeldDistance = kHeadDim / kWgmmaDepth / kHeld;

// The part of 64 rows that is held, as a warpgroup has it as left operand. kBlock: bytes from a
// block of the tile to the next.
template <int kHeadDim, int kHeld, int kBlock = kSquareBlock>
__device__ __forceinline__ void LoadHeld(uint32_t tile, int thread, uint32_t (&held)[kHeld][4]) {
  static_assert(kHeadDim / kWgmmaDepth % kHeld == 0,
                "the operands that are held are spread evenly");
  static_assert(kBlock % kSquareBlock == 0, "blocks hold columns of their own");
  const int lane = thread % kWarp;
  const int row = thread / kWarp * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int k = i * kHeldDistance<kHeadDim, kHeld>;
    const int chunk = k % kStepsPerBlock * 2 + lane / 16;
    const int line = k / kStepsPerBlock * kBlock + row * kSwizzleBytes;
    ptx::LdMatrixX4(held[i], tile + line + (chunk ^ row % 8) * 16);
  }
}

// result = left right^T, 64 rows by 2 kCells; `held`: part of the left tile, or null with kHeld 0.
// kBlock: of the left tile, as above; the right one has kRightRows, or as many as are multiplied.
template <typename Element,
          int kHeadDim,
          int kHeld = 0,
          int kBlock = kSquareBlock,
          int kRightRows = 0,
          int kCells>
__device__ __forceinline__ void MultiplyTiles(const uint32_t (*held)[4],
                                              uint32_t left,
                                              uint32_t right,
                                              float (&result)[kCells]) {
  constexpr int kColumns = 2 * kCells;
  constexpr int kRightBlock = (kRightRows == 0 ? kColumns : kRightRows) * kSwizzleBytes;
  const uint64_t left_tile = ptx::SwizzledTile(left, kUnusedDistance);
  const uint64_t right_tile = ptx::SwizzledTile(right, kUnusedDistance);
#pragma unroll
  for (int k = 0; k < kHeadDim / kWgmmaDepth; ++k) {
    const int block = k / kStepsPerBlock;
    const int in_line = k % kStepsPerBlock * kStepBytes;
    const uint64_t right_part = ptx::Shift(right_tile, block * kRightBlock + in_line);
    if constexpr (kHeld > 0) {
      constexpr int kDistance = kHeldDistance<kHeadDim, kHeld>;
      if (k % kDistance == 0) {
        const uint32_t (&cells)[4] = held[k / kDistance];
        ptx::WgmmaRegisters<Element, kColumns, false>(result,
                                                      cells[0],
                                                      cells[1],
                                                      cells[2],
                                                      cells[3],
                                                      right_part,
                                                      k != 0);
        continue;
      }
    }
    ptx::WgmmaShared<Element, kColumns, false, false>(
        result,
        ptx::Shift(left_tile, block * kBlock + in_line),
        right_part,
        k != 0);
  }
}

// sums += cells tile: 64 rows by 4 kPairs cells in pairs, as registers hold scores, times as many
// rows of a tile of kTileRows, or of as many; `keep` false: sums start anew.
template <typename Element, int kHeadDim, int kTileRows = 0, int kPairs>
__device__ __forceinline__ void AddTile(const uint32_t (&cells)[kPairs],
                                        uint32_t tile,
                                        bool keep,
                                        float (&sums)[kHeadDim / 2]) {
  constexpr int kRows = 4 * kPairs;
  const uint64_t right =
      ptx::SwizzledTile(tile, (kTileRows == 0 ? kRows : kTileRows) * kSwizzleBytes);
#pragma unroll
  for (int k = 0; k < kRows / kWgmmaDepth; ++k) {
    ptx::WgmmaRegisters<Element, kHeadDim, true>(sums,
                                                 cells[4 * k],
                                                 cells[4 * k + 1],
                                                 cells[4 * k + 2],
                                                 cells[4 * k + 3],
                                                 ptx::Shift(right, k * kWgmmaDepth * kSwizzleBytes),
                                                 k != 0 || keep);
  }
}

}  // namespace flashmask::sm90a
