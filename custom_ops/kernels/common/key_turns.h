#pragma once

// Whose turn it is to add to the query gradient of some rows, for a backward whose sums must have
// the same order in every run.
//
// Key blocks add to a step of rows one after another, the last key block first, and only those for
// which the step is live. A block that has added leaves its number in a word of that step; the next
// one waits for it. What a block waits for is the nearest live block behind it, found by walking
// the ranges of the plan; for most masks that is its neighbour. FindLastKeyBlocks tells for each
// step where the chain starts, so that nobody walks to the end of the sequence in vain.

#include "kernels/common/mask_plan.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask {

struct KeyTurns {
  int32_t* last_blocks = nullptr;  // [masks, row steps]: last live key block, -1: none
  int32_t* done = nullptr;         // a word for each head and row step; 0: nobody has added yet
  int32_t* ticket = nullptr;       // blocks that have started
};

// Enqueues the kernel that fills `last_blocks` for steps of `step_rows` rows and blocks of
// `block_keys` keys: 32, 64 or 128.
Status FindLastKeyBlocks(const AttentionSizes& sizes,
                         const MaskPlanView& plan,
                         int32_t step_rows,
                         int32_t block_keys,
                         int32_t* last_blocks,
                         cudaStream_t stream);

#if defined(__CUDACC__)

// The one or two ranges of the plan, x and y, that the keys of a block of kKeys lie in.
template <int kKeys>
__device__ __forceinline__ int2 RangesOf(int32_t key_block, int32_t num_column_tiles) {
  static_assert(kKeys == 2 * kPlanColumns || kPlanColumns % kKeys == 0, "one or two ranges");
  if constexpr (kKeys <= kPlanColumns) {
    const int32_t tile = key_block / (kPlanColumns / kKeys);
    return make_int2(tile, tile);
  }
  return make_int2(key_block * 2, min(key_block * 2 + 1, num_column_tiles - 1));
}

// Class of rows [row_begin, row_end) by the keys of a block of kKeys; `ranges` are those of its
// mask. What is a part of a range takes the class of the whole.
template <int kKeys>
__device__ __forceinline__ TileClass ClassifyKeyBlock(const TileRange* ranges,
                                                      int32_t num_column_tiles,
                                                      int32_t key_block,
                                                      int32_t row_begin,
                                                      int32_t row_end) {
  const int2 tiles = RangesOf<kKeys>(key_block, num_column_tiles);
  if constexpr (kKeys <= kPlanColumns) return ClassifyTile(ranges[tiles.x], row_begin, row_end);
  return ClassifyPair(ranges[tiles.x], ranges[tiles.y], tiles.x != tiles.y, row_begin, row_end);
}

// What the word of a step holds when it is `key_block`'s turn there; the step is live for it.
template <int kKeys>
__device__ __forceinline__ int32_t TurnOf(const TileRange* ranges,
                                          int32_t num_column_tiles,
                                          int32_t key_block,
                                          int32_t last_block,
                                          int32_t row_begin,
                                          int32_t row_end) {
  if (key_block >= last_block) return 0;
  int32_t before = key_block + 1;
  while (before < last_block &&
         ClassifyKeyBlock<kKeys>(ranges, num_column_tiles, before, row_begin, row_end) ==
             TileClass::kSkip) {
    ++before;
  }
  return before + 1;
}

// What a block leaves when it has added.
__device__ __forceinline__ int32_t TurnAfter(int32_t key_block) { return key_block + 1; }

#endif

}  // namespace flashmask
