#pragma once

// Tile numbers of the sm90a backward, and what a launch passes to its kernels.

#include "core/params.h"
#include "kernels/common/key_shares.cuh"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/sm90a/tile_config.h"

#include <cuda.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Element_, int kHeadDim_>
struct BackwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what is computed; the tensors' may be less
  static constexpr int kBoxes = (kHeadDim + kSwizzleColumns - 1) / kSwizzleColumns;  // of a row
  static constexpr int kTileWidth = kBoxes * kSwizzleColumns;  // elements of a row of a tile
  static constexpr int kKeys = kPlanKeyBlock;
  // A thread's two scores tiles and two key sums then take at most 192 registers.
  static constexpr int kRows = kHeadDim > 64 ? 64 : 128;
  static constexpr int kGroups = 2;                   // consumer warpgroups
  static constexpr int kGroupKeys = kKeys / kGroups;  // keys that a consumer warpgroup owns
  static constexpr int kThreads = kWarpgroup * (1 + kGroups);
  static constexpr int kQueryStages = 3;  // query of a step is read until the middle of the next
  static constexpr int kGradOutStages = 2;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  // A group sums half of the columns of a step's share of grad_query, or, of one box, half of the
  // rows. Its half of the key's columns is a box of its own, though boxes may overlap for that.
  static constexpr bool kHalfColumns = kBoxes == 2;
  static constexpr int kGroupColumns = kHalfColumns ? kHeadDim / 2 : kHeadDim;
  static constexpr int kGroupSums = kGroupColumns / 2;  // floats of a thread
  static constexpr int kTileFloats = kRows * kHeadDim;  // of a step's share of grad_query
  // Of a group's part of value, times 16 columns: kept in registers for an item, where there is
  // room, which spares shared memory as many reads.
  static constexpr int kHeldValues = kHeadDim == 128 ? 4 : kHeadDim == 96 ? 6 : 0;

  static_assert(kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128, "wgmma is written for these");
  static_assert(kGroupKeys == 64, "a wgmma has 64 rows");
  static_assert(kTileFloats == kGroups * kWarpgroup * kGroupSums, "a group sums half of a tile");
};

// What the deterministic backward adds: an order of the sums of grad_query. The key blocks of a
// head add to a step of rows in the plan's order, that of places: those that many more rows see
// than others, such as keys that are visible everywhere, come last, so that nobody waits for them.
// If the heads of an item have several masks, the first decides. Rows go from the last to the
// first, so that under a diagonal a block is a step behind the one before it.
struct SumOrder {
  // [masks, row steps, words]: bit b of word w is set if the key block of rank 32 w + b is live.
  const uint32_t* live_blocks = nullptr;  // null: sums may come in any order
  int32_t* last_added = nullptr;          // [B, Hq, row steps, groups]: 1 + the last block's rank
  int32_t words = 0;
  // Pairs of a step and a key block that are live, over all masks.
  unsigned long long* live_pairs = nullptr;
  // Key heads, or shares of such, that are worked on together, were every step live for every key
  // block.
  float heads_if_dense = 0.0f;
};

struct BackwardArguments {
  CUtensorMap query;
  CUtensorMap key;
  CUtensorMap value;
  CUtensorMap grad_out;
  CUtensorMap grad_key;
  CUtensorMap grad_value;
  TensorView grad_query;
  RowTerms terms;
  float* grad_query_sum;  // [B, Hq, row steps, kTileFloats], permuted
  int32_t* next_item;     // zero at the start
  // Zero at the start: the step of rows at work in key blocks that go round; null: none does.
  int32_t* step_at_work;
  SumOrder order;
  MaskPlanView plan;
  int32_t num_items;   // the long ones of long_ranks with them
  int32_t long_ranks;  // entries of key_order that are looked at for long key blocks
  int32_t most_held;   // kPlanRowSteps of live rows of a key block, if the L2 holds as many
  KeyShares shares;
  int32_t num_shares;         // of the key heads of one batch row
  int32_t num_shares_total;   // over the batch
  int32_t heads_per_section;  // shares of key heads at work together; not used by ordered sums
  int32_t heads_per_item;     // query heads of a share
  int32_t heads_per_key;
  int32_t seqlen_q;
  int32_t num_steps;           // of kRows rows
  int32_t grad_out_row_shift;  // 0, or past the last row: zeros
  int32_t head_dim;
  int32_t num_heads;
  int32_t heads_per_mask;
  int32_t num_heads_mask;
  float softmax_scale;
  float scale_log2;  // softmax_scale * log2(e)
};

}  // namespace flashmask::sm90a
