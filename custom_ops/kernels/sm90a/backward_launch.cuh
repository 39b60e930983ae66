#pragma once

// From the params of a call to the launches of the sm90a backward.
//
// Workspace: the plan; lse and delta of every row and head; for ordered sums a bit per step of rows
// and key block of a mask; then, zeroed together, the counter of items, the step at work of blocks
// that go round, and the ordered sums' count of live pairs and places; then the float buffer of
// grad_query, rows padded to whole steps; then what shares of key blocks leave (64 KB each at head
// dim 128, where there are few).

#include "core/diagnostics.h"
#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/key_shares.cuh"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/common/row_terms.cuh"
#include "kernels/common/scale.h"
#include "kernels/common/shared_memory.h"
#include "kernels/sm90a/backward.cuh"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_finish.cuh"
#include "kernels/sm90a/tensor_map.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace flashmask::sm90a {

// What of the L2 the sums of grad_query of a section of heads may take: reductions run at 3.9 TB/s
// inside it and at 1.5 outside, and the rows of query and grad_out take as much again.
constexpr int64_t kSectionBytes = int64_t{16} << 20;
inline int64_t SectionBytes() { return std::min(kSectionBytes, MostSectionBytes()); }

// Of a share of a key block: fewer are not worth the start and the end of an item.
constexpr int64_t kFewestSharedRows = 1024;

struct BackwardScratch {
  RowTerms terms;
  uint32_t* live_blocks = nullptr;
  int32_t words = 0;
  int32_t* next_item = nullptr;
  int32_t* step_at_work = nullptr;
  unsigned long long* live_pairs = nullptr;
  int32_t* last_added = nullptr;
  float* grad_query_sum = nullptr;
  KeyShares shares;
  void* key_shares = nullptr;
  size_t zeroed_bytes = 0;  // from next_item on
  size_t total_bytes = 0;
  int64_t num_steps = 0;
};

// Key heads, or shares of such, whose sums of grad_query fill SectionBytes; `shared_by` of them
// have the same sums. In ordered sums the heads of a group go side by side, so that of all their
// sums a quarter at most is at work.
template <typename Config>
float HeadsIfDense(int64_t heads_per_key, int64_t num_steps, int32_t shared_by, bool ordered) {
  const int64_t bytes =
      heads_per_key * num_steps * Config::kTileFloats * static_cast<int64_t>(sizeof(float));
  const float at_work = ordered && heads_per_key > 1 ? 0.25f : 1.0f;
  return static_cast<float>(SectionBytes() * shared_by) /
         (at_work * static_cast<float>(std::max<int64_t>(1, bytes)));
}

// Live row steps of a key block whose sums of grad_query, of so many heads, fill SectionBytes.
template <typename Config>
int32_t MostHeld(int64_t heads) {
  constexpr int64_t kStepFloats = int64_t{Config::kTileFloats} / Config::kRows * kPlanRowStep;
  constexpr int64_t kSumsBytes = kStepFloats * static_cast<int64_t>(sizeof(float));
  return static_cast<int32_t>(SectionBytes() / (kSumsBytes * std::max<int64_t>(1, heads)));
}

template <typename Config>
BackwardScratch LayOutBackward(const BackwardParams& params, void* workspace) {
  constexpr size_t kAlignment = 256;
  constexpr int64_t kBits = 32;
  const AttentionSizes& sizes = params.sizes;
  const int64_t heads = sizes.batch * sizes.num_heads;
  const int64_t blocks = (sizes.seqlen_k + Config::kKeys - 1) / Config::kKeys;
  BackwardScratch scratch;
  size_t used = MaskPlanBytes(sizes);
  const auto take = [&](int64_t count) {
    char* taken = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + used;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return static_cast<void*>(taken);
  };
  scratch.num_steps = (sizes.seqlen_q + Config::kRows - 1) / Config::kRows;
  scratch.terms.padded_rows = scratch.num_steps * Config::kRows;
  scratch.terms.lse_log2 = static_cast<float*>(take(heads * scratch.terms.padded_rows));
  scratch.terms.delta = static_cast<float*>(take(heads * scratch.terms.padded_rows));
  if (params.deterministic) {
    const int64_t masks = sizes.batch * sizes.num_heads_mask;
    scratch.words = static_cast<int32_t>((blocks + kBits - 1) / kBits);
    scratch.live_blocks = static_cast<uint32_t*>(take(masks * scratch.num_steps * scratch.words));
  }
  const size_t zeroed_from = used;
  scratch.next_item = static_cast<int32_t*>(take(1));
  scratch.shares =
      SharesOf(sizes, BackwardItemsWanted(), Config::kKeys, sizes.seqlen_q / kFewestSharedRows);
  // Ordered sums have their own way of being at the same rows, and shares of them their own rows.
  if (!params.deterministic && scratch.shares.rows == 1) {
    scratch.step_at_work = static_cast<int32_t*>(take(1));
  }
  if (params.deterministic) {
    scratch.live_pairs = static_cast<unsigned long long*>(take(2));
    scratch.last_added = static_cast<int32_t*>(take(heads * scratch.num_steps * Config::kGroups));
  }
  scratch.zeroed_bytes = used - zeroed_from;
  scratch.grad_query_sum =
      static_cast<float*>(take(heads * scratch.num_steps * Config::kTileFloats));
  scratch.key_shares = take(SharedFloats(sizes, scratch.shares));
  scratch.total_bytes = used;
  return scratch;
}

// Of a tensor with keys in its rows, of so many heads, or, without, of one with queries.
inline Status MakeBackwardMap(const BackwardParams& params,
                              const TensorView& view,
                              const char* name,
                              std::optional<int64_t> heads_of_keys,
                              int box_rows,
                              CUtensorMap* map) {
  const AttentionSizes& sizes = params.sizes;
  return MakeTensorMap(view,
                       name,
                       params.dtype,
                       sizes.batch,
                       heads_of_keys.has_value() ? sizes.seqlen_k : sizes.seqlen_q,
                       heads_of_keys.value_or(sizes.num_heads),
                       sizes.head_dim,
                       box_rows,
                       map);
}

// Of what is loaded.
template <typename Config>
Status MakeInputMaps(const BackwardParams& params, BackwardArguments* args) {
  // Without a gradient of the output its rows are read past the end of the query's: zeros.
  const bool given = params.grad_out.data != nullptr;
  const TensorView& rows = given ? params.grad_out : params.query;
  const int64_t heads = params.sizes.num_heads_k;
  const Status made[] = {
      MakeBackwardMap(params, params.query, "query", {}, Config::kRows, &args->query),
      MakeBackwardMap(params, rows, "grad_out", {}, Config::kRows, &args->grad_out),
      MakeBackwardMap(params, params.key, "key", heads, Config::kKeys, &args->key),
      MakeBackwardMap(params, params.value, "value", heads, Config::kKeys, &args->value),
  };
  for (const Status& status : made) {
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

// Of what the copy engine stores.
template <typename Config>
Status MakeOutputMaps(const BackwardParams& params,
                      const KeyGradients& grads,
                      BackwardArguments* args) {
  constexpr int kRows = Config::kGroupKeys;
  const int64_t heads = grads.num_heads;
  const Status made[] = {
      MakeBackwardMap(params, grads.key, "grad_key", heads, kRows, &args->grad_key),
      MakeBackwardMap(params, grads.value, "grad_value", heads, kRows, &args->grad_value),
  };
  return made[0].ok() ? made[1] : made[0];
}

template <typename Config>
void FillBackwardArguments(const BackwardParams& params,
                           const MaskPlanView& plan,
                           const BackwardScratch& scratch,
                           BackwardArguments* args) {
  const AttentionSizes& sizes = params.sizes;
  const int64_t group = sizes.num_heads / sizes.num_heads_k;
  const int64_t heads_per_item = group / scratch.shares.heads;
  const int64_t num_shares = sizes.num_heads_k * scratch.shares.Count();
  const int64_t num_shares_total = sizes.batch * num_shares;
  const bool ordered = scratch.live_blocks != nullptr;
  const float heads_if_dense =
      HeadsIfDense<Config>(heads_per_item, scratch.num_steps, scratch.shares.rows, ordered);
  args->grad_query = params.grad_query;
  args->terms = scratch.terms;
  args->grad_query_sum = scratch.grad_query_sum;
  args->next_item = scratch.next_item;
  args->order = {scratch.live_blocks,
                 scratch.last_added,
                 scratch.words,
                 scratch.live_pairs,
                 heads_if_dense};
  args->plan = plan;
  args->most_held = MostHeld<Config>(heads_per_item);
  const bool may_go_round =
      plan.num_key_blocks > 1 && sizes.seqlen_q > int64_t{args->most_held} * kPlanRowStep;
  args->step_at_work = may_go_round ? scratch.step_at_work : nullptr;
  // Of n blocks fewer than one in kLongBlock can be that many times as long as the mean.
  args->long_ranks = heads_per_item == 1 || ordered ? 0 : plan.num_key_blocks / kLongBlock;
  args->num_items =
      static_cast<int32_t>(num_shares_total * (plan.num_key_blocks + args->long_ranks) *
                           (kPlanKeyBlock / Config::kKeys));
  args->num_shares_total = static_cast<int32_t>(num_shares_total);
  args->heads_per_section = static_cast<int32_t>(
      std::clamp(heads_if_dense, 1.0f, static_cast<float>(std::max<int64_t>(1, num_shares_total))));
  args->seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args->num_steps = static_cast<int32_t>(scratch.num_steps);
  args->grad_out_row_shift =
      params.grad_out.data != nullptr ? 0 : static_cast<int32_t>(scratch.terms.padded_rows);
  args->head_dim = static_cast<int32_t>(sizes.head_dim);
  args->num_heads = static_cast<int32_t>(sizes.num_heads);
  args->num_shares = static_cast<int32_t>(num_shares);
  args->heads_per_item = static_cast<int32_t>(heads_per_item);
  args->heads_per_key = static_cast<int32_t>(group);
  args->shares = scratch.shares;
  args->heads_per_mask = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_mask);
  args->num_heads_mask = static_cast<int32_t>(sizes.num_heads_mask);
  args->softmax_scale = params.softmax_scale;
  args->scale_log2 = params.softmax_scale * kLog2E;
}

inline unsigned SmallBlocks(int64_t threads) {
  return static_cast<unsigned>((threads + kSmallThreads - 1) / kSmallThreads);
}

// grad_key, grad_value and the sums of grad_query; there are rows and keys.
template <typename Config>
Status LaunchBackwardKernel(const BackwardParams& params,
                            const BackwardScratch& scratch,
                            const KeyGradients& grads,
                            BackwardArguments* args) {
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const Status inputs_mapped = MakeInputMaps<Config>(params, args);
  if (!inputs_mapped.ok()) return inputs_mapped;
  const Status outputs_mapped = MakeOutputMaps<Config>(params, grads, args);
  if (!outputs_mapped.ok()) return outputs_mapped;
  const ClearedBytes cleared{scratch.next_item, scratch.zeroed_bytes};
  const PlanOrders orders = params.deterministic ? PlanOrders::kKeyPlaces : PlanOrders::kKeyBlocks;
  const Status built =
      BuildMaskPlan(params.sizes, params.mask, args->plan, orders, stream, cleared);
  if (!built.ok()) return built;
  const RowTermInputs inputs = RowTermInputsOf(params, scratch.terms);
  const int64_t tiles = params.sizes.batch * params.sizes.num_heads * scratch.num_steps;
  PrepareRows<Config><<<static_cast<unsigned>(tiles), kSmallThreads, 0, stream>>>(*args, inputs);
  FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetLastError());
  if (params.deterministic) {
    const int64_t words = int64_t{args->plan.num_masks} * scratch.num_steps * scratch.words;
    const int32_t masks_of_group = std::max(1, args->heads_per_item / args->heads_per_mask);
    ListLiveBlocks<Config::kRows>
        <<<SmallBlocks(words * kWarp), kSmallThreads, 0, stream>>>(args->plan,
                                                                   args->seqlen_q,
                                                                   args->num_steps,
                                                                   scratch.words,
                                                                   masks_of_group,
                                                                   scratch.live_blocks,
                                                                   scratch.live_pairs);
    FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetLastError());
  }
  int multiprocessors = 0;
  const Status counted = FindMultiprocessors(params.execution.device, &multiprocessors);
  if (!counted.ok()) return counted;
  static SharedMemoryLimit limit;
  constexpr int kSharedBytes = sizeof(BackwardShared<Config>);
  static_assert(kSharedBytes <= kMostSharedBytes, "tiles and messages fit into shared memory");
  const auto kernel = BackwardKernel<Config>;
  const Status raised =
      limit.Raise(reinterpret_cast<const void*>(kernel), kSharedBytes, params.execution.device);
  if (!raised.ok()) return raised;
  kernel<<<std::min(args->num_items, multiprocessors), Config::kThreads, kSharedBytes, stream>>>(
      *args);
  return CudaStatus(cudaGetLastError(), "launch of the backward kernel");
}

inline Status LaunchClear(const TensorView& view,
                          const AttentionSizes& sizes,
                          int64_t rows,
                          int64_t heads,
                          cudaStream_t stream) {
  constexpr int kChunk = 8;
  const int64_t chunks = sizes.batch * rows * heads * sizes.head_dim / kChunk;
  if (chunks == 0) return Status::Ok();
  ClearTensor<kChunk><<<SmallBlocks(chunks), kSmallThreads, 0, stream>>>(view,
                                                                         sizes.batch,
                                                                         rows,
                                                                         heads,
                                                                         sizes.head_dim);
  return CudaStatus(cudaGetLastError(), "launch of ClearTensor");
}

// All gradients are zero: there are no rows, or no keys.
inline Status LaunchClears(const BackwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const auto clear = [&](const TensorView& view, int64_t rows, int64_t heads) {
    const auto stream = static_cast<cudaStream_t>(params.execution.stream);
    return LaunchClear(view, sizes, rows, heads, stream);
  };
  const Status query = clear(params.grad_query, sizes.seqlen_q, sizes.num_heads);
  if (!query.ok()) return query;
  const Status key = clear(params.grad_key, sizes.seqlen_k, sizes.num_heads_k);
  if (!key.ok()) return key;
  return clear(params.grad_value, sizes.seqlen_k, sizes.num_heads_k);
}

template <typename Config>
Status LaunchBackward(const BackwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  if (sizes.seqlen_q == 0 || sizes.seqlen_k == 0) return LaunchClears(params);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace);
  const BackwardScratch scratch = LayOutBackward<Config>(params, params.execution.workspace);
  const int64_t tiles = sizes.batch * sizes.num_heads * scratch.num_steps;
  const int64_t items =
      sizes.batch * sizes.num_heads_k * plan.num_key_blocks * scratch.shares.Count();
  if (std::max(items, tiles) > INT32_MAX / 2) {
    return Status::Unsupported("more than 2^30 blocks of rows or keys in one call");
  }
  if (tiles == 0) return Status::Ok();
  BackwardArguments args;
  FillBackwardArguments<Config>(params, plan, scratch, &args);
  const KeyGradients grads = KeyGradientsOf(params, scratch.shares, scratch.key_shares);
  const Status launched = LaunchBackwardKernel<Config>(params, scratch, grads, &args);
  if (!launched.ok()) return launched;
  const Status summed = LaunchSumShares<typename Config::Element>(params, scratch.shares, grads);
  if (!summed.ok()) return summed;
  FinishGradQuery<Config><<<static_cast<unsigned>(tiles), kSmallThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of FinishGradQuery");
}

// Picks the element type; a registered kernel is asked only for the dtypes it lists.
template <int kHeadDim>
Status Backward(const BackwardParams& params) {
  if (params.dtype == DataType::kFloat16) {
    return LaunchBackward<BackwardConfig<__half, kHeadDim>>(params);
  }
  return LaunchBackward<BackwardConfig<__nv_bfloat16, kHeadDim>>(params);
}

template <int kHeadDim>
size_t BackwardWorkspace(const BackwardParams& params) {
  return LayOutBackward<BackwardConfig<__nv_bfloat16, kHeadDim>>(params, nullptr).total_bytes;
}

}  // namespace flashmask::sm90a
