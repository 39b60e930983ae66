#pragma once

// From the params of a call to a launch of the sm80 backward.

#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/key_shares.cuh"
#include "kernels/common/key_turns.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/common/shared_memory.h"
#include "kernels/sm80/arguments.h"
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/convert_grad_query.cuh"
#include "kernels/sm80/tile_config.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace flashmask::sm80 {

// What of the L2 the sums of the query gradient of a section of heads may take in a deterministic
// backward.
constexpr int64_t kSumSectionBytes = int64_t{32} << 20;

// The workspace of a backward: the plan, then these.
struct BackwardScratch {
  RowTerms terms;
  KeyTurns turns;
  float* grad_query_sum = nullptr;
  KeyShares shares;
  void* key_shares = nullptr;
  void* cleared = nullptr;  // what starts as 0
  size_t cleared_bytes = 0;
  size_t total_bytes = 0;
};

template <typename Config>
BackwardScratch LayOutBackward(const BackwardParams& params, void* workspace) {
  const AttentionSizes& sizes = params.sizes;
  const int64_t num_steps = (sizes.seqlen_q + Config::kBlockRows - 1) / Config::kBlockRows;
  const int64_t steps = sizes.batch * sizes.num_heads * num_steps;
  BackwardScratch scratch;
  scratch.terms.padded_rows = num_steps * Config::kBlockRows;
  char* const begin = static_cast<char*>(workspace);
  size_t used = MaskPlanBytes(sizes);
  const auto take = [&](int64_t count) {
    constexpr size_t kAlignment = 256;
    char* const taken = begin == nullptr ? nullptr : begin + used;
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return taken;
  };
  scratch.terms.lse_log2 = reinterpret_cast<float*>(take(steps * Config::kBlockRows));
  scratch.terms.delta = reinterpret_cast<float*>(take(steps * Config::kBlockRows));
  if (params.deterministic) {
    const int64_t masks = sizes.batch * sizes.num_heads_mask;
    scratch.turns.last_blocks = reinterpret_cast<int32_t*>(take(masks * num_steps));
  }
  const size_t cleared_from = used;
  scratch.grad_query_sum =
      reinterpret_cast<float*>(take(steps * Config::kBlockRows * Config::kHeadDim));
  scratch.cleared = scratch.grad_query_sum;
  if (params.deterministic) {
    scratch.turns.done = reinterpret_cast<int32_t*>(take(steps));
    scratch.turns.ticket = reinterpret_cast<int32_t*>(take(1));
  }
  scratch.cleared_bytes = used - cleared_from;
  scratch.shares = SharesOf(sizes, BackwardItemsWanted(), Config::kBlockColumns, 1);
  scratch.key_shares = take(SharedFloats(sizes, scratch.shares));
  scratch.total_bytes = used;
  return scratch;
}

template <typename Config>
BackwardArguments ArgumentsOf(const BackwardParams& params,
                              const MaskPlanView& plan,
                              const KeyGradients& grads,
                              const BackwardScratch& scratch) {
  const int64_t sum_bytes =
      scratch.terms.padded_rows * Config::kHeadDim * static_cast<int64_t>(sizeof(float));
  const int64_t heads_per_item = params.sizes.num_heads / grads.num_heads;
  const int64_t section = kSumSectionBytes / std::max<int64_t>(1, sum_bytes * heads_per_item);
  const int64_t all_heads = params.sizes.batch * grads.num_heads;
  BackwardArguments args;
  static_cast<AttentionArguments&>(args) = CommonArguments(params, plan);
  args.grad_out = params.grad_out;
  args.grad_query = params.grad_query;
  args.grad_key = grads.key;
  args.grad_value = grads.value;
  args.shares_of_key = scratch.shares.Count();
  args.num_shares = static_cast<int32_t>(grads.num_heads);
  args.heads_per_item = static_cast<int32_t>(heads_per_item);
  args.terms = scratch.terms;
  args.grad_query_sum = scratch.grad_query_sum;
  args.softmax_scale = params.softmax_scale;
  args.turns = scratch.turns;
  args.heads_per_section = static_cast<int32_t>(std::min(all_heads, std::max<int64_t>(1, section)));
  return args;
}

template <typename Config, bool kHalfLines, bool kDeterministic>
Status LaunchBackwardKernel(const BackwardArguments& args,
                            unsigned blocks,
                            int device,
                            cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(BackwardShared<Config, kDeterministic>);
  const auto kernel = BackwardKernel<Config, kHalfLines, kDeterministic>;
  static SharedMemoryLimit limit;
  const Status raised = limit.Raise(reinterpret_cast<const void*>(kernel), kSharedBytes, device);
  if (!raised.ok()) return raised;
  kernel<<<blocks, Config::kThreads, kSharedBytes, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of the backward kernel");
}

// One deterministic kernel serves all masks: the general test of a cell is right for half lines
// too.
template <typename Config>
Status LaunchKeyBlocks(const BackwardParams& params,
                       const BackwardArguments& args,
                       unsigned blocks,
                       cudaStream_t stream) {
  const int device = params.execution.device;
  if (params.deterministic) {
    const Status found = FindLastKeyBlocks(params.sizes,
                                           args.plan,
                                           Config::kBlockRows,
                                           Config::kBlockColumns,
                                           args.turns.last_blocks,
                                           stream);
    if (!found.ok()) return found;
    return LaunchBackwardKernel<Config, false, true>(args, blocks, device, stream);
  }
  const auto launch = HasHalfLines(params.mask) ? LaunchBackwardKernel<Config, true, false>
                                                : LaunchBackwardKernel<Config, false, false>;
  return launch(args, blocks, device, stream);
}

template <typename Config>
Status LaunchBackward(const BackwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace);
  const BackwardScratch scratch = LayOutBackward<Config>(params, params.execution.workspace);
  const PlanOrders orders = params.deterministic ? PlanOrders::kNone : PlanOrders::kKeyBlocks;
  const Status built = BuildMaskPlan(sizes, params.mask, plan, orders, stream);
  if (!built.ok()) return built;
  const Status terms =
      ComputeRowTerms(params, scratch.terms, stream, scratch.cleared, scratch.cleared_bytes);
  if (!terms.ok()) return terms;
  const KeyGradients grads = KeyGradientsOf(params, scratch.shares, scratch.key_shares);
  const BackwardArguments args = ArgumentsOf<Config>(params, plan, grads, scratch);
  const int64_t key_blocks =
      sizes.batch * grads.num_heads * plan.num_key_blocks * (kPlanKeyBlock / Config::kBlockColumns);
  const int64_t steps =
      sizes.batch * sizes.num_heads * scratch.terms.padded_rows / Config::kBlockRows;
  if (key_blocks > INT32_MAX || steps > INT32_MAX) {
    return Status::Unsupported("more than 2^31 - 1 blocks in one call");
  }
  if (key_blocks > 0) {
    const Status launched =
        LaunchKeyBlocks<Config>(params, args, static_cast<unsigned>(key_blocks), stream);
    if (!launched.ok()) return launched;
    const Status summed = LaunchSumShares<typename Config::Element>(params, scratch.shares, grads);
    if (!summed.ok()) return summed;
  }
  if (steps == 0) return Status::Ok();
  ConvertGradQuery<Config><<<static_cast<unsigned>(steps), Config::kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of ConvertGradQuery");
}

// Takes the first tiles for which the device has shared memory.
template <typename Element, int kHeadDim, typename First, typename... Others>
Status BackwardWith(const BackwardParams& params,
                    const SharedMemorySizes& shared,
                    TileList<First, Others...>) {
  using Config = BackwardConfig<Element, kHeadDim, First>;
  constexpr int kNeeded = sizeof(BackwardShared<Config, true>);
  if constexpr (sizeof...(Others) == 0) {
    static_assert(kNeeded <= 99 * 1024, "a block of sm_86 and sm_89 has 99 KB");
  } else if (shared.of_block < kNeeded) {
    return BackwardWith<Element, kHeadDim>(params, shared, TileList<Others...>());
  }
  return LaunchBackward<Config>(params);
}

// Picks the element type; a registered kernel is asked only for the dtypes it lists.
template <int kHeadDim>
Status Backward(const BackwardParams& params) {
  using Tiles = typename BackwardChoices<kHeadDim>::Tiles;
  SharedMemorySizes shared;
  const Status found = FindSharedMemory(params.execution.device, &shared);
  if (!found.ok()) return found;
  if (params.dtype == DataType::kFloat16) {
    return BackwardWith<__half, kHeadDim>(params, shared, Tiles());
  }
  return BackwardWith<__nv_bfloat16, kHeadDim>(params, shared, Tiles());
}

template <int kHeadDim, typename... Tiles>
size_t MostBackwardBytes(const BackwardParams& params, TileList<Tiles...>) {
  return std::max({LayOutBackward<BackwardConfig<__nv_bfloat16, kHeadDim, Tiles>>(params, nullptr)
                       .total_bytes...});
}

// Which tiles it will be is the device's affair.
template <int kHeadDim>
size_t BackwardWorkspace(const BackwardParams& params) {
  return MostBackwardBytes<kHeadDim>(params, typename BackwardChoices<kHeadDim>::Tiles());
}

}  // namespace flashmask::sm80
