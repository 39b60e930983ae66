#pragma once

// Products of a warpgroup over swizzled tiles of 64 rows by kHeadDim, for the sm90a backward of
// wide head dims. Tiles are given by their shared address. Nothing is committed here.

#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_wide_config.h"
#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

// Of the products along the head dim, 16 columns each, every which one has its left operand in
// registers: with kHeld of them spread evenly, shared memory is asked for the others evenly.
template <int kHeadDim, int kHeld>
constexpr int kHeldDistance = kHeadDim / kWgmmaDepth / kHeld;

// The part of a tile that is held, as a warpgroup has it as left operand.
template <int kHeadDim, int kHeld>
__device__ __forceinline__ void LoadHeld(uint32_t tile, int thread, uint32_t (&held)[kHeld][4]) {
  static_assert(kHeadDim / kWgmmaDepth % kHeld == 0,
                "the operands that are held are spread evenly");
  const int row = thread / kWarp * 16 + thread % 16;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int k = i * kHeldDistance<kHeadDim, kHeld>;
    const int chunk = k % kStepsPerBlock * 2 + thread % kWarp / 16;
    const int line = k / kStepsPerBlock * kWideTileBlock + row * kSwizzleBytes;
    ptx::LdMatrixX4(held[i], tile + line + (chunk ^ row % 8) * 16);
  }
}

// result = left right^T, with part of the left tile in registers
template <typename Element, int kHeadDim, int kHeld>
__device__ __forceinline__ void MultiplyTiles(const uint32_t (&held)[kHeld][4],
                                              uint32_t left,
                                              uint32_t right,
                                              float (&result)[kWideCells]) {
  constexpr int kDistance = kHeldDistance<kHeadDim, kHeld>;
  const uint64_t left_tile = ptx::SwizzledTile(left, kUnusedDistance);
  const uint64_t right_tile = ptx::SwizzledTile(right, kUnusedDistance);
#pragma unroll
  for (int k = 0; k < kHeadDim / kWgmmaDepth; ++k) {
    const int at = k / kStepsPerBlock * kWideTileBlock + k % kStepsPerBlock * kStepBytes;
    if (k % kDistance == 0) {
      const uint32_t* cells = held[k / kDistance];
      ptx::WgmmaRegisters<Element, kWideTileRows, false>(result,
                                                         cells[0],
                                                         cells[1],
                                                         cells[2],
                                                         cells[3],
                                                         ptx::Shift(right_tile, at),
                                                         k != 0);
    } else {
      ptx::WgmmaShared<Element, kWideTileRows, false, false>(result,
                                                             ptx::Shift(left_tile, at),
                                                             ptx::Shift(right_tile, at),
                                                             k != 0);
    }
  }
}

// result = left right^T
template <typename Element, int kHeadDim>
__device__ __forceinline__ void MultiplyTiles(uint32_t left,
                                              uint32_t right,
                                              float (&result)[kWideCells]) {
  const uint64_t left_tile = ptx::SwizzledTile(left, kUnusedDistance);
  const uint64_t right_tile = ptx::SwizzledTile(right, kUnusedDistance);
#pragma unroll
  for (int k = 0; k < kHeadDim / kWgmmaDepth; ++k) {
    const int at = k / kStepsPerBlock * kWideTileBlock + k % kStepsPerBlock * kStepBytes;
    ptx::WgmmaShared<Element, kWideTileRows, false, false>(result,
                                                           ptx::Shift(left_tile, at),
                                                           ptx::Shift(right_tile, at),
                                                           k != 0);
  }
}

// sums += cells tile, with 64 x 64 cells in pairs, as registers hold scores; `keep` false: sums
// start anew.
template <typename Element, int kHeadDim>
__device__ __forceinline__ void AddTile(const uint32_t (&cells)[kWideCells / 2],
                                        uint32_t tile,
                                        bool keep,
                                        float (&sums)[kHeadDim / 2]) {
  const uint64_t right = ptx::SwizzledTile(tile, kWideTileBlock);
#pragma unroll
  for (int k = 0; k < kWideTileRows / kWgmmaDepth; ++k) {
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
