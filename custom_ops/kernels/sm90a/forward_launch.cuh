#pragma once

// From the params of a call to a launch of the sm90a forward.

#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/scale.h"
#include "kernels/common/shared_memory.h"
#include "kernels/sm90a/forward.cuh"
#include "kernels/sm90a/tensor_map.h"
#include "kernels/sm90a/tile_config.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace flashmask::sm90a {

template <typename Config>
Status MakeForwardMaps(const ForwardParams& params, ForwardArguments* args) {
  const AttentionSizes& sizes = params.sizes;
  const auto map_keys = [&](const TensorView& view, const char* name, KeyMaps* maps) {
    const auto map = [&](int rows, CUtensorMap* made) {
      return MakeTensorMap(view,
                           name,
                           params.dtype,
                           sizes.batch,
                           sizes.seqlen_k,
                           sizes.num_heads_k,
                           sizes.head_dim,
                           rows,
                           made);
    };
    const Status tile = map(Config::kBlockColumns, &maps->tile);
    return tile.ok() ? map(kPlanColumns, &maps->part) : tile;
  };
  const Status query = MakeTensorMap(params.query,
                                     "query",
                                     params.dtype,
                                     sizes.batch,
                                     sizes.seqlen_q,
                                     sizes.num_heads,
                                     sizes.head_dim,
                                     Config::kGroupRows,
                                     &args->query);
  if (!query.ok()) return query;
  const Status key = map_keys(params.key, "key", &args->key);
  return key.ok() ? map_keys(params.value, "value", &args->value) : key;
}

template <typename Config>
Status FillForwardArguments(const ForwardParams& params,
                            const MaskPlanView& plan,
                            int64_t num_items,
                            ForwardArguments* args) {
  const AttentionSizes& sizes = params.sizes;
  args->out = params.out;
  args->softmax_lse = params.softmax_lse;
  args->ticket = reinterpret_cast<int32_t*>(static_cast<char*>(params.execution.workspace) +
                                            MaskPlanBytes(sizes, Config::kBlockRows));
  args->num_items = static_cast<int32_t>(num_items);
  args->seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args->head_dim = static_cast<int32_t>(sizes.head_dim);
  args->num_heads = static_cast<int32_t>(sizes.num_heads);
  args->heads_per_key = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_k);
  args->heads_per_mask = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_mask);
  args->num_heads_mask = static_cast<int32_t>(sizes.num_heads_mask);
  args->scale_log2 = ScaleLog2(params.softmax_scale);
  args->negate = params.softmax_scale < 0.0f;
  args->order = OrderOf(sizes);
  args->plan = plan;
  return sizes.seqlen_k == 0 ? Status::Ok() : MakeForwardMaps<Config>(params, args);
}

template <typename Config, bool kHalfLines>
Status LaunchForwardKernel(const ForwardArguments& args,
                           int blocks,
                           int device,
                           cudaStream_t stream) {
  static SharedMemoryLimit limit;
  constexpr int kSharedBytes = sizeof(ForwardShared<Config>);
  static_assert(kSharedBytes <= kMostSharedBytes, "tiles and their notes fit into shared memory");
  const auto kernel = ForwardKernel<Config, kHalfLines>;
  const Status raised = limit.Raise(reinterpret_cast<const void*>(kernel), kSharedBytes, device);
  if (!raised.ok()) return raised;
  kernel<<<blocks, Config::kThreads, kSharedBytes, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of the forward kernel");
}

template <typename Config>
Status LaunchForward(const ForwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace, Config::kBlockRows);
  const int64_t items = sizes.batch * sizes.num_heads * plan.num_row_blocks;
  if (items == 0) return Status::Ok();
  if (items > INT32_MAX / 2) {
    return Status::Unsupported("more than 2^30 blocks of rows in one call");
  }
  ForwardArguments args;
  const Status filled = FillForwardArguments<Config>(params, plan, items, &args);
  if (!filled.ok()) return filled;
  const ClearedBytes cleared{args.ticket, kTicketBytes};
  const Status built =
      BuildMaskPlan(sizes, params.mask, plan, PlanOrders::kRowBlocks, stream, cleared);
  if (!built.ok()) return built;
  int multiprocessors = 0;
  const Status counted = FindMultiprocessors(params.execution.device, &multiprocessors);
  if (!counted.ok()) return counted;
  const auto launch = HasHalfLines(params.mask) ? LaunchForwardKernel<Config, true>
                                                : LaunchForwardKernel<Config, false>;
  const int blocks = static_cast<int>(std::min<int64_t>(items, multiprocessors));
  return launch(args, blocks, params.execution.device, stream);
}

// Picks the element type; a registered kernel is asked only for the dtypes it lists.
template <int kHeadDim>
Status Forward(const ForwardParams& params) {
  if (params.dtype == DataType::kFloat16) {
    return LaunchForward<ForwardConfig<__half, kHeadDim>>(params);
  }
  return LaunchForward<ForwardConfig<__nv_bfloat16, kHeadDim>>(params);
}

template <int kHeadDim>
size_t ForwardWorkspace(const ForwardParams& params) {
  constexpr int kBlockRows = ForwardConfig<__nv_bfloat16, kHeadDim>::kBlockRows;
  return MaskPlanBytes(params.sizes, kBlockRows) + kTicketBytes;
}

}  // namespace flashmask::sm90a
