#pragma once

// What the sm80 backward is passed, what its blocks share, and where a thread is; see backward.cuh.

#include "kernels/common/key_turns.h"
#include "kernels/common/output_dot.h"
#include "kernels/ptx/not_hoisted.h"
#include "kernels/sm80/arguments.h"
#include "kernels/sm80/live_tiles.cuh"

#include <cstdint>

namespace flashmask::sm80 {

struct BackwardArguments : AttentionArguments {
  TensorView grad_out;  // data null: zero
  TensorView grad_query;
  TensorView grad_key;
  TensorView grad_value;
  RowTerms terms;
  float* grad_query_sum;  // [B, Hq, row steps, kBlockRows * kHeadDim], permuted
  float softmax_scale;
  // Work items take shares of a key head's query heads; num_shares of one batch row.
  int32_t shares_of_key;
  int32_t num_shares;
  int32_t heads_per_item;
  // With kDeterministic: words of `turns.done` are [B, Hq, row steps].
  KeyTurns turns;
  int32_t heads_per_section;
};

// The turns of the steps of a list, and the place of the block in the order of work.
template <bool kDeterministic, int kListSteps>
struct TurnsShared {};

template <int kListSteps>
struct TurnsShared<true, kListSteps> {
  int32_t turns[kListSteps];
  int32_t ticket;
  bool has_turn;
};

template <typename Config, bool kDeterministic>
struct BackwardShared {
  using Element = typename Config::Element;
  // Steps of a list of live ones; with turns one warp fewer fills it, to fit what sm_80 has.
  static constexpr int kListWarps = kDeterministic ? 3 : 4;
  alignas(128) Element key[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element value[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element query[2][Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element grad_out[Config::kGradOutStages][Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element weights[Config::kBlockRows * Config::kBlockColumns];
  alignas(128) Element grad_scores[Config::kBlockRows * Config::kBlockColumns];
  alignas(16) float terms[2][Config::kBlockRows];  // lse_log2, delta
  alignas(16) int4 bounds[Config::kBlockColumns];
  LiveTiles<kListWarps, 32, uint8_t> live;
  TurnsShared<kDeterministic, 32 * kListWarps> order;
};

// A thread's place in its block. ...Here: for addresses that are worked out where they are used;
// kept over the loop all of them together want more registers than there are.
template <int kHeadDim>
struct ThreadPlace {
  static constexpr bool kInPlace = kHeadDim != 64 && kHeadDim != 128;
  static __device__ __forceinline__ int Warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int Lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int ThreadHere() {
    return kInPlace ? ptx::NotHoisted(threadIdx.x) : threadIdx.x;
  }
  static __device__ __forceinline__ int LaneHere() {
    return kInPlace ? ptx::NotHoisted(Lane()) : Lane();
  }
};

}  // namespace flashmask::sm80
