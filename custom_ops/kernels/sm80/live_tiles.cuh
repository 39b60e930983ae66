#pragma once

// The live tiles of a row block or of a key block, in shared memory, a chunk of the sequence at a
// time, so that its size does not depend on the sequence.

#include "core/column_bounds.h"
#include "kernels/common/device_math.cuh"

#include <cstdint>
#include <limits>

namespace flashmask::sm80 {

// The first `kWarps` warps of a block fill it.
template <int kWarps, int kTilesPerWarp_, typename Stored>
struct LiveTiles {
  static constexpr int kTilesPerWarp = kTilesPerWarp_;
  static constexpr int kChunkTiles = kWarps * kTilesPerWarp;
  static_assert(2 * kChunkTiles - 1 <= std::numeric_limits<Stored>::max(), "an entry must fit");

  Stored entries[kChunkTiles];  // 2 * (tile - begin) + (1 if partial); each warp fills its part
  int32_t counts[kWarps];

  // All threads of the block call this between barriers. Tiles [begin, begin + kChunkTiles) of
  // num_tiles; `classify(tile)` gives the class of one.
  template <typename Classify>
  __device__ __forceinline__ void Collect(int begin, int num_tiles, Classify classify) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (warp >= kWarps) return;
    int count = 0;
#pragma unroll 2
    for (int i = 0; i < kTilesPerWarp; i += 32) {
      const int in_chunk = warp * kTilesPerWarp + i + lane;
      TileClass tile_class = TileClass::kSkip;
      if (begin + in_chunk < num_tiles) tile_class = classify(begin + in_chunk);
      const bool live = tile_class != TileClass::kSkip;
      const unsigned live_lanes = __ballot_sync(kAllLanes, live);
      if (live) {
        const int place = count + __popc(live_lanes & ((1u << lane) - 1));
        const int entry = 2 * in_chunk + (tile_class == TileClass::kPartial);
        entries[warp * kTilesPerWarp + place] = static_cast<Stored>(entry);
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

  // Entry `i` over all warps, in ascending order of tiles: 2 * tile + (1 if partial).
  __device__ __forceinline__ int32_t Entry(int i, int begin) const {
    int place = i;
#pragma unroll
    for (int warp = 0; warp < kWarps - 1; ++warp) {
      // Skips over what the quarter of a warp has left empty.
      int before = 0;
#pragma unroll
      for (int w = 0; w <= warp; ++w) before += counts[w];
      if (i >= before) place = (warp + 1) * kTilesPerWarp + i - before;
    }
    return 2 * begin + entries[place];
  }
};

}  // namespace flashmask::sm80
