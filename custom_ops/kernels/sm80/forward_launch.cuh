#pragma once

// From the params of a call to a launch of the sm80 forward.

#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/shared_memory.h"
#include "kernels/common/work_order.cuh"
#include "kernels/sm80/arguments.h"
#include "kernels/sm80/combine_splits.h"
#include "kernels/sm80/few_rows.h"
#include "kernels/sm80/forward.cuh"
#include "kernels/sm80/tile_config.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace flashmask::sm80 {

template <typename Config, bool kHalfLines, bool kFewRows>
Status LaunchForwardKernel(const ForwardArguments& args,
                           unsigned blocks,
                           int device,
                           cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(ForwardShared<Config>);
  const auto kernel = ForwardKernel<Config, kHalfLines, kFewRows>;
  static SharedMemoryLimit limit;
  const Status raised = limit.Raise(reinterpret_cast<const void*>(kernel), kSharedBytes, device);
  if (!raised.ok()) return raised;
  kernel<<<blocks, Config::kThreads, kSharedBytes, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "launch of the forward kernel");
}

template <typename Config>
Status LaunchForward(const ForwardParams& params) {
  const AttentionSizes& sizes = params.sizes;
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace, Config::kBlockRows);
  const int64_t blocks = sizes.batch * sizes.num_heads * plan.num_row_blocks;
  if (blocks == 0) return Status::Ok();
  if (blocks > INT32_MAX) {
    return Status::Unsupported("more than 2^31 - 1 blocks of rows in one call");
  }
  const Status built = BuildMaskPlan(sizes, params.mask, plan, PlanOrders::kRowBlocks, stream);
  if (!built.ok()) return built;
  ForwardArguments args;
  static_cast<AttentionArguments&>(args) = CommonArguments(params, plan);
  args.out = params.out;
  args.softmax_lse = params.softmax_lse;
  args.order = OrderOf(sizes);
  const auto launch = HasHalfLines(params.mask) ? LaunchForwardKernel<Config, true, false>
                                                : LaunchForwardKernel<Config, false, false>;
  return launch(args, static_cast<unsigned>(blocks), params.execution.device, stream);
}

// The workspace of a call with few rows: the plan, then results of splits.
struct FewRowsScratch {
  SplitResults parts;
  size_t total_bytes = 0;
};

inline FewRowsScratch LayOutFewRows(const AttentionSizes& sizes,
                                    const FewRows& cut,
                                    void* workspace) {
  FewRowsScratch scratch;
  scratch.parts.splits = cut.splits;
  scratch.total_bytes = MaskPlanBytes(sizes, kFewRowsBlock);
  if (cut.splits == 1) return scratch;
  const int64_t rows = cut.splits * sizes.batch * sizes.num_heads * sizes.seqlen_q;
  const auto out_bytes = static_cast<size_t>(rows * sizes.head_dim) * sizeof(float);
  char* const begin = static_cast<char*>(workspace);
  if (begin != nullptr) {
    scratch.parts.out = reinterpret_cast<float*>(begin + scratch.total_bytes);
    scratch.parts.lse_log2 = reinterpret_cast<float*>(begin + scratch.total_bytes + out_bytes);
  }
  scratch.total_bytes += out_bytes + static_cast<size_t>(rows) * sizeof(float);
  return scratch;
}

// One kernel serves all masks: the general test of a cell is right for half lines too.
template <typename Config>
Status LaunchFewRows(const ForwardParams& params) {
  static_assert(Config::kBlockRows == kFewRowsBlock, "few_rows.h counts blocks of so many rows");
  const AttentionSizes& sizes = params.sizes;
  const auto stream = static_cast<cudaStream_t>(params.execution.stream);
  const MaskPlanView plan = LayOutMaskPlan(sizes, params.execution.workspace, Config::kBlockRows);
  ForwardArguments args;
  args.cut = CutFewRows(sizes, Config::kBlocksPerSm);
  const int64_t blocks = args.cut.items * args.cut.splits;
  if (blocks == 0) return Status::Ok();
  if (blocks > INT32_MAX) {
    return Status::Unsupported("more than 2^31 - 1 blocks of rows in one call");
  }
  const Status built = BuildMaskPlan(sizes, params.mask, plan, PlanOrders::kNone, stream);
  if (!built.ok()) return built;
  static_cast<AttentionArguments&>(args) = CommonArguments(params, plan);
  args.out = params.out;
  args.softmax_lse = params.softmax_lse;
  args.parts = LayOutFewRows(sizes, args.cut, params.execution.workspace).parts;
  const Status launched = LaunchForwardKernel<Config, false, true>(args,
                                                                   static_cast<unsigned>(blocks),
                                                                   params.execution.device,
                                                                   stream);
  if (!launched.ok() || args.cut.splits == 1) return launched;
  return CombineSplits(params, args.parts, stream);
}

template <typename Element, int kHeadDim>
Status ForwardOf(const ForwardParams& params) {
  using Tiles = ForwardTiles<Element, kHeadDim>;
  const DeviceGuard guard(params.execution.device);
  if (!guard.status().ok()) return guard.status();
  if (HasFewRows(params.sizes)) return LaunchFewRows<typename Tiles::FewRows>(params);
  if constexpr (!std::is_same_v<typename Tiles::Wide, typename Tiles::Narrow>) {
    SharedMemorySizes shared;
    const Status found = FindSharedMemory(params.execution.device, &shared);
    if (!found.ok()) return found;
    if (shared.Holds(1, sizeof(ForwardShared<typename Tiles::Wide>)) &&
        !shared.Holds(2, sizeof(ForwardShared<typename Tiles::Narrow>))) {
      return LaunchForward<typename Tiles::Wide>(params);
    }
  }
  return LaunchForward<typename Tiles::Narrow>(params);
}

// Picks the element type; a registered kernel is asked only for the dtypes it lists.
template <int kHeadDim>
Status Forward(const ForwardParams& params) {
  if (params.dtype == DataType::kFloat16) return ForwardOf<__half, kHeadDim>(params);
  return ForwardOf<__nv_bfloat16, kHeadDim>(params);
}

template <int kHeadDim>
size_t ForwardWorkspace(const ForwardParams& params) {
  using Tiles = ForwardTiles<__nv_bfloat16, kHeadDim>;
  static_assert(sizeof(ForwardShared<typename Tiles::Narrow>) <= 99 * 1024 &&
                    sizeof(ForwardShared<typename Tiles::FewRows>) <= 99 * 1024,
                "a block of sm_86 and sm_89 has 99 KB");
  static_assert(sizeof(ForwardShared<typename Tiles::Wide>) <= 163 * 1024,
                "a block of sm_80 has 163 KB");
  const AttentionSizes& sizes = params.sizes;
  if (HasFewRows(sizes)) {
    const FewRows cut = CutFewRows(sizes, Tiles::FewRows::kBlocksPerSm);
    return LayOutFewRows(sizes, cut, nullptr).total_bytes;
  }
  // Which tiles it will be is the device's affair.
  return std::max(MaskPlanBytes(sizes, Tiles::Narrow::kBlockRows),
                  MaskPlanBytes(sizes, Tiles::Wide::kBlockRows));
}

}  // namespace flashmask::sm80
