#pragma once

// From the params of a call to the launches of the sm90a backward of wide head dims.
//
// Workspace: the plan; lse and delta of every row and head; a counter of items for each kernel;
// what shares of key blocks leave.

#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/key_shares.cuh"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/common/shared_memory.h"
#include "kernels/common/work_order.cuh"
#include "kernels/sm90a/backward_keys.cuh"
#include "kernels/sm90a/backward_launch.cuh"
#include "kernels/sm90a/backward_rows.cuh"
#include "kernels/sm90a/backward_wide_config.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace flashmask::sm90a {

// Only one of the two kernels wins by shares, and its items of 64 keys are long: a third as many as
// elsewhere do.
constexpr int64_t kWideItemsShare = 3;

struct WideScratch {
  BackwardScratch both;
  int32_t* next_row_item = nullptr;
};

inline WideScratch LayOutWideBackward(const AttentionSizes& sizes, void* workspace) {
  const int64_t blocks = (sizes.seqlen_q + kPlanRowBlock - 1) / kPlanRowBlock;
  const int64_t padded_rows = blocks * kPlanRowBlock;
  const int64_t rows = sizes.batch * sizes.num_heads * padded_rows;
  const size_t plan_bytes = MaskPlanBytes(sizes);
  auto* terms = workspace == nullptr
                    ? nullptr
                    : reinterpret_cast<float*>(static_cast<char*>(workspace) + plan_bytes);
  WideScratch scratch;
  scratch.both.num_steps = (sizes.seqlen_q + kWideTileRows - 1) / kWideTileRows;
  scratch.both.terms = {terms, terms == nullptr ? nullptr : terms + rows, padded_rows};
  scratch.both.zeroed_bytes = kTicketBytes;
  const size_t shares_from = plan_bytes + 2 * rows * sizeof(float) + kTicketBytes;
  scratch.both.shares = SharesOf(sizes,
                                 BackwardItemsWanted() / kWideItemsShare,
                                 kWideTileRows,
                                 sizes.seqlen_q / kFewestSharedRows);
  scratch.both.total_bytes = shares_from + SharedFloats(sizes, scratch.both.shares) * sizeof(float);
  if (terms != nullptr) {
    scratch.both.next_item = reinterpret_cast<int32_t*>(terms + 2 * rows);
    scratch.next_row_item = scratch.both.next_item + 1;
    scratch.both.key_shares = static_cast<char*>(workspace) + shares_from;
  }
  return scratch;
}

template <typename Kernel>
Status LaunchWideKernel(Kernel kernel,
                        const WideBackwardArguments& args,
                        SharedMemoryLimit* limit,
                        int blocks,
                        int threads,
                        int shared_bytes,
                        const Execution& execution) {
  const Status raised =
      limit->Raise(reinterpret_cast<const void*>(kernel), shared_bytes, execution.device);
  if (!raised.ok()) return raised;
  kernel<<<blocks, threads, shared_bytes, static_cast<cudaStream_t>(execution.stream)>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of a wide backward kernel");
}

// The row terms, the plan with both orders, and one kernel after the other.
template <typename KeysConfig, typename RowsConfig>
Status LaunchWideKernels(const BackwardParams& params,
                         const WideScratch& scratch,
                         const WideBackwardArguments& args) {
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  int multiprocessors = 0;
  const Status counted = FindMultiprocessors(params.execution.device, &multiprocessors);
  if (!counted.ok()) return counted;
  const Status terms = ComputeRowTerms(params,
                                       scratch.both.terms,
                                       stream,
                                       scratch.both.next_item,
                                       scratch.both.zeroed_bytes);
  if (!terms.ok()) return terms;
  const Status planned =
      BuildMaskPlan(params.sizes, params.mask, args.both.plan, PlanOrders::kBoth, stream);
  if (!planned.ok()) return planned;
  static SharedMemoryLimit keys_limit;
  constexpr int kKeysBytes = sizeof(WideKeysShared<KeysConfig>);
  static_assert(kKeysBytes <= kMostSharedBytes, "tiles of keys and rows fit into shared memory");
  const Status keys = LaunchWideKernel(WideKeysKernel<KeysConfig>,
                                       args,
                                       &keys_limit,
                                       std::min(args.both.num_items, multiprocessors),
                                       KeysConfig::kThreads,
                                       kKeysBytes,
                                       params.execution);
  if (!keys.ok()) return keys;
  static SharedMemoryLimit rows_limit;
  constexpr int kRowsBytes = sizeof(WideRowsShared<RowsConfig>);
  static_assert(kRowsBytes <= kMostSharedBytes, "tiles of rows and keys fit into shared memory");
  return LaunchWideKernel(WideRowsKernel<RowsConfig>,
                          args,
                          &rows_limit,
                          std::min(args.num_row_items, multiprocessors),
                          RowsConfig::kThreads,
                          kRowsBytes,
                          params.execution);
}

template <typename Element, int kHeadDim>
Status LaunchWideBackward(const BackwardParams& params) {
  using KeysConfig = WideKeysConfig<Element, kHeadDim>;
  using RowsConfig = WideRowsConfig<Element, kHeadDim>;
  const AttentionSizes& sizes = params.sizes;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  if (sizes.seqlen_q == 0 || sizes.seqlen_k == 0) return LaunchClears(params);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace);
  const WideScratch scratch = LayOutWideBackward(sizes, params.execution.workspace);
  const int64_t steps = sizes.batch * sizes.num_heads * scratch.both.num_steps;
  const int64_t items =
      sizes.batch * sizes.num_heads_k * plan.num_key_blocks * scratch.both.shares.Count();
  if (std::max(items, steps) > INT32_MAX / 4) {
    return Status::Unsupported("more than 2^29 blocks of rows or keys in one call");
  }
  if (steps == 0) return Status::Ok();
  WideBackwardArguments args;
  FillBackwardArguments<KeysConfig>(params, plan, scratch.both, &args.both);
  const KeyGradients grads = KeyGradientsOf(params, scratch.both.shares, scratch.both.key_shares);
  args.grad_key = grads.key;
  args.grad_value = grads.value;
  args.seqlen_k = static_cast<int32_t>(sizes.seqlen_k);
  args.next_row_item = scratch.next_row_item;
  args.num_row_items = static_cast<int32_t>(sizes.batch * sizes.num_heads * plan.num_row_blocks);
  args.row_order = OrderOf(sizes);
  const Status mapped = MakeInputMaps<KeysConfig>(params, &args.both);
  if (!mapped.ok()) return mapped;
  const Status launched = LaunchWideKernels<KeysConfig, RowsConfig>(params, scratch, args);
  if (!launched.ok()) return launched;
  return LaunchSumShares<Element>(params, scratch.both.shares, grads);
}

// Picks the element type; a registered kernel is asked only for the dtypes it lists.
template <int kHeadDim>
Status WideBackward(const BackwardParams& params) {
  if (params.dtype == DataType::kFloat16) return LaunchWideBackward<__half, kHeadDim>(params);
  return LaunchWideBackward<__nv_bfloat16, kHeadDim>(params);
}

inline size_t WideBackwardWorkspace(const BackwardParams& params) {
  return LayOutWideBackward(params.sizes, nullptr).both.total_bytes;
}

}  // namespace flashmask::sm90a
