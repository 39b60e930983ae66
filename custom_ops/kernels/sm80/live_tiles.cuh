#pragma once

// The live key tiles of a row block, in shared memory, a chunk of the sequence at a time, so that its
// size does not depend on the sequence.

#include "kernels/common/mask_plan.h"

#include <cstdint>

namespace flashmask::sm80 {

template <int kWarps>
struct LiveTiles {
  static constexpr int kTilesPerWarp = 256;
  static constexpr int kChunkTiles = kWarps * kTilesPerWarp;

  int32_t entries[kChunkTiles];  // 2 * tile + (1 if partial); each warp fills its own quarter
  int32_t counts[kWarps];

  // All threads of the block call this between barriers. Tiles [begin, begin + kChunkTiles).
  __device__ __forceinline__ void Collect(const TileRange* ranges, int begin, int num_tiles,
                                          int32_t row_begin, int32_t row_end) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    int count = 0;
    for (int i = 0; i < kTilesPerWarp; i += 32) {
      const int tile = begin + warp * kTilesPerWarp + i + lane;
      TileClass tile_class = TileClass::kSkip;
      if (tile < num_tiles) tile_class = ClassifyTile(ranges[tile], row_begin, row_end);
      const bool live = tile_class != TileClass::kSkip;
      const unsigned live_lanes = __ballot_sync(0xffffffffu, live);
      if (live) {
        const int place = count + __popc(live_lanes & ((1u << lane) - 1));
        entries[warp * kTilesPerWarp + place] = 2 * tile + (tile_class == TileClass::kPartial);
      }
      count += __popc(live_lanes);
    }
    if (lane == 0) counts[warp] = count;
  }

  __device__ __forceinline__ int Count() const {
    int count = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) count += counts[warp];
    return count;
  }

  // Entry `i` over all warps, in ascending order of tiles.
  __device__ __forceinline__ int32_t Entry(int i) const {
    int place = i;
#pragma unroll
    for (int warp = 0; warp < kWarps - 1; ++warp) {
      // Skips over what the quarter of a warp has left empty.
      int before = 0;
#pragma unroll
      for (int w = 0; w <= warp; ++w) before += counts[w];
      if (i >= before) place = (warp + 1) * kTilesPerWarp + i - before;
    }
    return entries[place];
  }
};

}  // namespace flashmask::sm80
