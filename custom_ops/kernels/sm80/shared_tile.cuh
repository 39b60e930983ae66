#pragma once

// A tile of 16-bit rows in shared memory, swizzled so that ldmatrix and 16-byte copies meet no bank
// conflicts: the 16-byte chunk c of row r lies at chunk c ^ (r % 8).

#include "kernels/ptx/cp_async.h"

#include <cstdint>

namespace flashmask::sm80 {

constexpr int kChunkElements = 8;  // 16 bytes

template <int kHeadDim>
__device__ __forceinline__ uint32_t TileOffset(int row, int chunk) {
  return static_cast<uint32_t>(row * kHeadDim * 2 + ((chunk ^ (row % 8)) * 16));
}

// Starts the copy of rows [0, rows) of a global tile; rows past them and columns past head_dim are
// filled with zero. `row_stride` in elements.
template <int kRows, int kHeadDim, int kThreads, typename Element>
__device__ __forceinline__ void LoadTileAsync(uint32_t shared, const Element* global,
                                              int64_t row_stride, int rows, int head_dim,
                                              int thread) {
  constexpr int kChunks = kHeadDim / kChunkElements;
  constexpr int kRowsPerPass = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kRowsPerPass == 0, "copies must tile evenly");
  const int chunk = thread % kChunks;
  const int first_row = thread / kChunks;
  const bool in_head = chunk * kChunkElements < head_dim;
  const Element* source = global + first_row * row_stride + chunk * kChunkElements;
#pragma unroll
  for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
    const int row = first_row + pass * kRowsPerPass;
    const bool valid = in_head && row < rows;
    ptx::CpAsync16(shared + TileOffset<kHeadDim>(row, chunk), source, valid);
    source += kRowsPerPass * row_stride;
  }
}

}  // namespace flashmask::sm80
