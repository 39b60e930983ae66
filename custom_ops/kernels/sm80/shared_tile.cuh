#pragma once

// A tile of 16-bit rows in shared memory, swizzled so that ldmatrix and 16-byte copies meet no bank
// conflicts: the 16-byte chunk c of row r lies at chunk c ^ (r % 8), or, where a row is no whole
// number of 128-byte segments (96 elements), at c ^ (r / 2 % 4).

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/memory.h"

#include <cstdint>

namespace flashmask::sm80 {

constexpr int kChunkElements = 8;  // 16 bytes

// Chunks among which the swizzle moves one: of 128 or 64 bytes.
template <int kHeadDim>
constexpr int kSegmentChunks = kHeadDim % 64 == 0 ? 8 : 4;

template <int kHeadDim>
__device__ __forceinline__ uint32_t TileOffset(int row, int chunk) {
  const int turn = kSegmentChunks<kHeadDim> == 8 ? row % 8 : row / 2 % 4;
  return static_cast<uint32_t>(row * kHeadDim * 2 + ((chunk ^ turn) * 16));
}

// Starts the copy of rows [0, rows) of a global tile; rows past them and columns past head_dim are
// filled with zero. `row_stride` in elements.
template <int kRows, int kHeadDim, int kThreads, typename Element>
__device__ __forceinline__ void LoadTileAsync(uint32_t shared,
                                              const Element* global,
                                              int64_t row_stride,
                                              int rows,
                                              int head_dim,
                                              int thread) {
  constexpr int kChunks = kHeadDim / kChunkElements;
  // Neighbouring threads copy a whole row, or a segment of one where whole rows do not divide the
  // threads or would be so few that the swizzle differs from pass to pass.
  constexpr bool kWholeRows = kThreads % kChunks == 0 && kThreads / kChunks >= 8;
  constexpr int kAcross = kWholeRows ? kChunks : kSegmentChunks<kHeadDim>;
  constexpr int kRowsPerPass = kThreads / kAcross;
  static_assert(kThreads % kAcross == 0 && kRows % kRowsPerPass == 0, "copies must tile evenly");
  const int chunk = thread % kAcross;
  const int first_row = thread / kAcross;
  const Element* source = global + first_row * row_stride + chunk * kChunkElements;
#pragma unroll
  for (int pass = 0; pass < kRows / kRowsPerPass; ++pass) {
    const int row = first_row + pass * kRowsPerPass;
#pragma unroll
    for (int beyond = 0; beyond < kChunks; beyond += kAcross) {
      const bool valid = (chunk + beyond) * kChunkElements < head_dim && row < rows;
      ptx::CpAsync16(shared + TileOffset<kHeadDim>(row, chunk) + beyond * 16,
                     source + beyond * kChunkElements,
                     valid);
    }
    source += kRowsPerPass * row_stride;
  }
}

// Rows [0, rows), columns [0, head_dim) of a shared tile to global memory.
template <int kRows, int kHeadDim, int kThreads, typename Element>
__device__ __forceinline__ void StoreTile(uint32_t shared,
                                          Element* global,
                                          int64_t row_stride,
                                          int rows,
                                          int head_dim,
                                          int thread) {
  constexpr int kChunks = kHeadDim / kChunkElements;
#pragma unroll
  for (int i = thread; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks;
    const int chunk = i % kChunks;
    if (row < rows && chunk * kChunkElements < head_dim) {
      *reinterpret_cast<uint4*>(global + row * row_stride + chunk * kChunkElements) =
          ptx::LoadSharedQuad(shared + TileOffset<kHeadDim>(row, chunk));
    }
  }
}

}  // namespace flashmask::sm80
