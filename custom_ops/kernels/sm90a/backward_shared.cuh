#pragma once

// What the warps of a sm90a backward block share: tiles, messages and barriers. backward.cuh says
// who writes and who reads what.

#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/ring_place.cuh"

#include <cstdint>

namespace flashmask::sm90a {

// Where a step's share of grad_query goes, and what kind of step it is.
struct alignas(16) StepInfo {
  int32_t tile;  // of grad_query_sum
  int32_t row_begin;
  int32_t mask_step;  // row of SumOrder::live_blocks
  uint32_t flags;
};

enum StepFlags : uint32_t {
  kPartialStep = 1,
  kLastStep = 2,   // of the item
  kFirstStep = 8,  // of the item
  kDeadStep = 4,   // of an item without live steps: there to write zeros
};

constexpr int32_t kNoMoreItems = -1;

struct ItemInfo {
  int32_t key_begin;  // or kNoMoreItems
  int32_t head_k;
  int32_t batch;
  int32_t rank;   // of the key block in the head's order
  int32_t share;  // of all shares of the batch's key heads: where its gradients go
};

// A step that is to be loaded.
struct ListEntry {
  StepInfo step;
  ItemInfo item;
  int32_t head;
  int32_t mask;
};
constexpr int kListEntries = 4;

enum class JobKind : int32_t { kAddGradQuery, kStoreGradKey, kStoreGradValue, kExit };

// What a reducer warp is to do with a group's staging.
struct alignas(16) Job {
  StepInfo step;  // of kAddGradQuery
  JobKind kind;
};

constexpr int kSlots = 2;  // of dS

template <typename Config>
struct BackwardShared {
  using Element = typename Config::Element;
  static constexpr int kTile = Config::kKeys * Config::kTileWidth;
  static constexpr int kRowTile = Config::kRows * Config::kTileWidth;
  alignas(1024) Element key[kTile];
  alignas(1024) Element value[kTile];
  alignas(1024) Element query[Config::kQueryStages][kRowTile];
  alignas(1024) Element grad_out[Config::kGradOutStages][kRowTile];
  alignas(1024) Element grad_scores[kSlots][Config::kKeys * Config::kRows];  // [rows / 64][key][64]
  alignas(1024) float staging[Config::kGroups][kRowTile / Config::kGroups];
  alignas(128) int4 bounds[Config::kQueryStages][Config::kKeys];
  alignas(128) float lse_log2[Config::kQueryStages][Config::kRows];
  alignas(128) float delta[Config::kGradOutStages][Config::kRows];
  StepInfo steps[Config::kQueryStages];
  ItemInfo items[2];
  StepInfo stored[Config::kGroups][kSlots];  // the steps whose dS is in the slots
  Job jobs[Config::kGroups];
  ListEntry entries[kListEntries];
  alignas(8) uint64_t query_full[Config::kQueryStages];
  alignas(8) uint64_t query_empty[Config::kQueryStages];
  alignas(8) uint64_t grad_out_full[Config::kGradOutStages];
  alignas(8) uint64_t grad_out_empty[Config::kGradOutStages];
  alignas(8) uint64_t grad_scores_full[kSlots];
  alignas(8) uint64_t grad_scores_empty[kSlots];
  alignas(8) uint64_t entry_full[kListEntries];
  alignas(8) uint64_t entry_empty[kListEntries];
  alignas(8) uint64_t key_full;
  alignas(8) uint64_t key_empty;
  alignas(8) uint64_t value_full;
  alignas(8) uint64_t value_empty;
};

// Numbers of named barriers; 0 is __syncthreads'. A staging is handed to and fro by two of them.
enum NamedBarrier : int {
  kStagingFree = 1,  // and 2: a reducer warp and its group
  kStagingFull = 3,  // and 4
  kTurn = 5,         // and 6: both groups; the group may issue its products
};
constexpr int kStagingThreads = kWarpgroup + kWarp;

}  // namespace flashmask::sm90a
