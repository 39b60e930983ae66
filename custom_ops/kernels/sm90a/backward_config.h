#pragma once

// Tile numbers of the sm90a backward, and what a launch passes to its kernels.

#include "core/params.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/sm90a/tile_config.h"

#include <cuda.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Element_, int kHeadDim_>
struct BackwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kKeys = kPlanKeyBlock;
  // A thread's two scores tiles and two key sums then take 192 registers at either head dim.
  static constexpr int kRows = kHeadDim == 128 ? 64 : 128;
  static constexpr int kGroups = 2;                   // consumer warpgroups
  static constexpr int kGroupKeys = kKeys / kGroups;  // keys that a consumer warpgroup owns
  static constexpr int kThreads = kWarpgroup * (1 + kGroups);
  static constexpr int kQueryStages = 3;  // query of a step is read until the middle of the next
  static constexpr int kGradOutStages = 2;
  static constexpr int kHelperRows = kHeadDim == 128 ? 16 : 32;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kGroupSums = 32;  // floats of a thread of a step's share of grad_query
  static constexpr int kTileFloats = kRows * kHeadDim;  // of a step's share of grad_query

  static_assert(kHeadDim == 64 || kHeadDim == 128, "grad_query is cut for these only");
  static_assert(kGroupKeys == 64, "a wgmma has 64 rows");
  static_assert(kGradOutStages == 2, "they go with the slots of dS");
  static_assert(kTileFloats == kGroups * kWarpgroup * kGroupSums, "a group sums half of a tile");
};

// What the deterministic backward adds: an order of the sums of grad_query.
struct SumOrder {
  // [masks, row steps, words]: bit b of word w is set if key block 32 w + b is live for the step.
  const uint32_t* live_blocks = nullptr;  // null: sums may come in any order
  int32_t* last_added = nullptr;          // [B, Hq, row steps, groups]: 1 + the last key block
  int32_t words = 0;
  // Pairs of a step and a key block that are live, over all masks.
  unsigned long long* live_pairs = nullptr;
  // Key heads that are worked on together, were every step live for every key block.
  float heads_if_dense = 0.0f;
};

// Sections of heads whose rows are prepared, or whose sums are converted, by the main kernel
// itself: all but so many at the start and at the end.
constexpr int kSectionsAhead = 2;
constexpr int kLeastSections = 6;  // below, kernels before and after do it all
// So they do if a section has less work than a large device does at once: no more than three are
// worked on together.
constexpr int kLeastSectionItems = 128;

// What BackwardHelper needs. The counts are zero at the start.
struct BackwardFusion {
  CUtensorMap out;                // boxes of kHelperRows rows
  CUtensorMap grad_out;           // likewise
  const float* softmax_lse;       // [B, Hq, Sq]
  const float* grad_softmax_lse;  // [B, Hq, Sq]; null: zero
  int32_t* next_task;
  int32_t* prepared;      // [sections]: steps of rows that are prepared
  int32_t* done;          // [sections]: items whose sums are complete, once for each reducer
  int32_t num_sections;   // 0: nothing is fused
  int32_t section_tiles;  // steps of rows of a section, of all its query heads
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
  SumOrder order;
  BackwardFusion fusion;
  MaskPlanView plan;
  int32_t num_items;
  int32_t num_heads_k_total;  // over the batch
  int32_t heads_per_section;  // key heads that are worked on together; not used by ordered sums
  int32_t seqlen_q;
  int32_t num_steps;           // of kRows rows
  int32_t grad_out_row_shift;  // 0, or past the last row: zeros
  int32_t head_dim;
  int32_t num_heads;
  int32_t num_heads_k;
  int32_t heads_per_key;
  int32_t heads_per_mask;
  int32_t num_heads_mask;
  float softmax_scale;
  float scale_log2;  // softmax_scale * log2(e)
};

}  // namespace flashmask::sm90a
