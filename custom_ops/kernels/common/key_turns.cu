// One warp per mask and row step; see key_turns.h.

#include "kernels/common/cuda_check.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/key_turns.h"

namespace flashmask {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarp;

template <int kKeys>
__global__ void __launch_bounds__(kThreads) LastKeyBlocks(MaskPlanView plan,
                                                          int32_t seqlen_q,
                                                          int32_t step_rows,
                                                          int32_t num_steps,
                                                          int32_t* last_blocks) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (warp >= static_cast<int64_t>(plan.num_masks) * num_steps) return;
  const TileRange* ranges = plan.ranges + warp / num_steps * plan.num_column_tiles;
  const int32_t row_begin = static_cast<int32_t>(warp % num_steps) * step_rows;
  const int32_t row_end = min(row_begin + step_rows, seqlen_q);
  int32_t last = -1;
  const int32_t num_blocks = plan.num_key_blocks * (kPlanKeyBlock / kKeys);
  for (int32_t first = num_blocks - 1; first >= 0 && last < 0; first -= kWarp) {
    const int32_t block = first - lane;
    const bool live =
        block >= 0 &&
        ClassifyKeyBlock<kKeys>(ranges, plan.num_column_tiles, block, row_begin, row_end) !=
            TileClass::kSkip;
    const unsigned live_lanes = __ballot_sync(kAllLanes, live);
    if (live_lanes != 0) last = first - (__ffs(static_cast<int>(live_lanes)) - 1);
  }
  if (lane == 0) last_blocks[warp] = last;
}

}  // namespace

Status FindLastKeyBlocks(const AttentionSizes& sizes,
                         const MaskPlanView& plan,
                         int32_t step_rows,
                         int32_t block_keys,
                         int32_t* last_blocks,
                         cudaStream_t stream) {
  const auto num_steps = static_cast<int32_t>((sizes.seqlen_q + step_rows - 1) / step_rows);
  const int64_t warps = static_cast<int64_t>(plan.num_masks) * num_steps;
  if (warps == 0) return Status::Ok();
  const auto blocks = static_cast<unsigned>((warps + kWarpsPerBlock - 1) / kWarpsPerBlock);
  const auto kernel = block_keys == 32   ? LastKeyBlocks<32>
                      : block_keys == 64 ? LastKeyBlocks<64>
                                         : LastKeyBlocks<128>;
  kernel<<<blocks, kThreads, 0, stream>>>(plan,
                                          static_cast<int32_t>(sizes.seqlen_q),
                                          step_rows,
                                          num_steps,
                                          last_blocks);
  return CudaStatus(cudaGetLastError(), "launch of LastKeyBlocks");
}

}  // namespace flashmask
