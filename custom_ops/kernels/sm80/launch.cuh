#pragma once

// From the params of a call to a launch of the sm80 kernels.

#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/tile_config.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace flashmask::sm80 {

constexpr float kLog2E = 1.4426950408889634f;
inline ForwardArguments ArgumentsOf(const ForwardParams& params, const MaskPlanView& plan) {
  const AttentionSizes& sizes = params.sizes;
  ForwardArguments args;
  args.query = params.query;
  args.key = params.key;
  args.value = params.value;
  args.out = params.out;
  args.softmax_lse = params.softmax_lse;
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.seqlen_k = static_cast<int32_t>(sizes.seqlen_k);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.heads_per_key = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_k);
  args.heads_per_mask = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_mask);
  args.num_heads_mask = static_cast<int32_t>(sizes.num_heads_mask);
  args.scale_log2 = std::max(std::fabs(params.softmax_scale) * kLog2E, kSmallestScale);
  args.negate = params.softmax_scale < 0.0f;
  args.order = OrderOf(sizes);
  args.plan = plan;
  return args;
}

template <typename Config, bool kHalfLines>
Status LaunchForwardKernel(const ForwardArguments& args, unsigned blocks, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(ForwardShared<Config>);
  const auto kernel = ForwardKernel<Config, kHalfLines>;
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<blocks, Config::kThreads, kSharedBytes, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of the forward kernel");
}

template <typename Config>
Status LaunchForward(const ForwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace);
  const int64_t blocks = sizes.batch * sizes.num_heads * plan.num_row_blocks;
  if (blocks == 0) return Status::Ok();
  if (blocks > INT32_MAX) {
    return Status::Unsupported("more than 2^31 - 1 blocks of rows in one call");
  }
  const Status built = BuildMaskPlan(sizes, params.mask, plan, PlanOrders::kRowBlocks, stream);
  if (!built.ok()) return built;
  const ForwardArguments args = ArgumentsOf(params, plan);
  const auto launch = HasHalfLines(params.mask) ? LaunchForwardKernel<Config, true>
                                                : LaunchForwardKernel<Config, false>;
  return launch(args, static_cast<unsigned>(blocks), stream);
}

inline size_t ForwardWorkspace(const ForwardParams& params) { return MaskPlanBytes(params.sizes); }

// The workspace of a backward: the plan, then these.
struct BackwardScratch {
  RowTerms terms;
  float* grad_query_sum = nullptr;
  size_t grad_query_bytes = 0;
  size_t total_bytes = 0;
};

template <typename Config>
BackwardScratch LayOutBackward(const AttentionSizes& sizes, void* workspace) {
  constexpr size_t kAlignment = 256;
  const auto aligned = [](size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  const int64_t steps = (sizes.seqlen_q + Config::kBlockRows - 1) / Config::kBlockRows;
  const int64_t heads = sizes.batch * sizes.num_heads;
  BackwardScratch scratch;
  scratch.terms.padded_rows = steps * Config::kBlockRows;
  const size_t term_bytes =
      aligned(static_cast<size_t>(heads * scratch.terms.padded_rows) * sizeof(float));
  scratch.grad_query_bytes = term_bytes * Config::kHeadDim;
  const size_t plan_bytes = MaskPlanBytes(sizes);
  scratch.total_bytes = plan_bytes + 2 * term_bytes + scratch.grad_query_bytes;
  if (workspace != nullptr) {
    char* next = static_cast<char*>(workspace) + plan_bytes;
    scratch.terms.lse_log2 = reinterpret_cast<float*>(next);
    scratch.terms.delta = reinterpret_cast<float*>(next + term_bytes);
    scratch.grad_query_sum = reinterpret_cast<float*>(next + 2 * term_bytes);
  }
  return scratch;
}

inline BackwardArguments ArgumentsOf(const BackwardParams& params,
                                     const MaskPlanView& plan,
                                     const BackwardScratch& scratch) {
  const AttentionSizes& sizes = params.sizes;
  BackwardArguments args;
  args.query = params.query;
  args.key = params.key;
  args.value = params.value;
  args.grad_out = params.grad_out;
  args.grad_query = params.grad_query;
  args.grad_key = params.grad_key;
  args.grad_value = params.grad_value;
  args.terms = scratch.terms;
  args.grad_query_sum = scratch.grad_query_sum;
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.seqlen_k = static_cast<int32_t>(sizes.seqlen_k);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.num_heads_k = static_cast<int32_t>(sizes.num_heads_k);
  args.heads_per_key = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_k);
  args.heads_per_mask = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_mask);
  args.num_heads_mask = static_cast<int32_t>(sizes.num_heads_mask);
  args.softmax_scale = params.softmax_scale;
  args.scale_log2 = std::max(std::fabs(params.softmax_scale) * kLog2E, kSmallestScale);
  args.negate = params.softmax_scale < 0.0f;
  args.plan = plan;
  return args;
}

template <typename Config, bool kHalfLines>
Status LaunchBackwardKernel(const BackwardArguments& args, unsigned blocks, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(BackwardShared<Config>);
  const auto kernel = BackwardKernel<Config, kHalfLines>;
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<blocks, Config::kThreads, kSharedBytes, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of the backward kernel");
}

template <typename Config>
Status LaunchBackward(const BackwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  if (params.deterministic) {
    return Status::Unsupported(
        "a deterministic backward is not there yet on sm80, and FLASHMASK_DETERMINISTIC, "
        "FLAGS_cudnn_deterministic or the caller asks for it");
  }
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace);
  const BackwardScratch scratch = LayOutBackward<Config>(sizes, params.execution.workspace);
  const Status built = BuildMaskPlan(sizes, params.mask, plan, PlanOrders::kKeyBlocks, stream);
  if (!built.ok()) return built;
  const Status terms = ComputeRowTerms(params, scratch.terms, stream);
  if (!terms.ok()) return terms;
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaMemsetAsync(scratch.grad_query_sum, 0, scratch.grad_query_bytes, stream));
  const BackwardArguments args = ArgumentsOf(params, plan, scratch);
  const int64_t key_blocks = sizes.batch * sizes.num_heads_k * plan.num_key_blocks;
  const int64_t steps =
      sizes.batch * sizes.num_heads * scratch.terms.padded_rows / Config::kBlockRows;
  if (key_blocks > INT32_MAX || steps > INT32_MAX) {
    return Status::Unsupported("more than 2^31 - 1 blocks in one call");
  }
  if (key_blocks > 0) {
    const auto launch = HasHalfLines(params.mask) ? LaunchBackwardKernel<Config, true>
                                                  : LaunchBackwardKernel<Config, false>;
    const Status launched = launch(args, static_cast<unsigned>(key_blocks), stream);
    if (!launched.ok()) return launched;
  }
  if (steps == 0) return Status::Ok();
  ConvertGradQuery<Config><<<static_cast<unsigned>(steps), Config::kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of ConvertGradQuery");
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
Status Backward(const BackwardParams& params) {
  if (params.dtype == DataType::kFloat16) {
    return LaunchBackward<BackwardConfig<__half, kHeadDim>>(params);
  }
  return LaunchBackward<BackwardConfig<__nv_bfloat16, kHeadDim>>(params);
}

template <int kHeadDim>
size_t BackwardWorkspace(const BackwardParams& params) {
  return LayOutBackward<BackwardConfig<__nv_bfloat16, kHeadDim>>(params.sizes, nullptr).total_bytes;
}

}  // namespace flashmask::sm80
