// Kernels that build a mask's plan; see mask_plan.h.
//
// PlanColumns  one warp per 64 columns, two columns a lane: lowers the numbers to bounds, stores
//              them, and folds them to one range by warp reductions.
// PlanCosts    one warp per row block: classifies its tiles, 32 at a time, and counts live ones.
// PlanOrder    one thread per row block: its rank is the number of blocks with more live tiles, or
//              as many and a larger row; so the order is a function of the mask alone.

#include "kernels/common/cuda_check.h"
#include "kernels/common/mask_plan.h"

#include <algorithm>

namespace flashmask {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr size_t kAlignment = 256;

struct PlanShape {
  int64_t seqlen_q;
  int64_t seqlen_k;
};

__device__ __forceinline__ IntervalRange FoldLanes(IntervalRange range) {
  range.cover.begin = __reduce_max_sync(kAllLanes, range.cover.begin);
  range.cover.end = __reduce_min_sync(kAllLanes, range.cover.end);
  range.touch.begin = __reduce_min_sync(kAllLanes, range.touch.begin);
  range.touch.end = __reduce_max_sync(kAllLanes, range.touch.end);
  return range;
}

__global__ void __launch_bounds__(kThreads)
    PlanColumns(PlanShape shape, MaskParams mask, MaskPlanView plan) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (warp >= static_cast<int64_t>(plan.num_masks) * plan.num_column_tiles) return;
  const int64_t mask_index = warp / plan.num_column_tiles;
  const int64_t column_begin = warp % plan.num_column_tiles * kPlanColumns;
  TileRange range{EmptyRange(), EmptyRange()};
  for (int i = 0; i < kPlanColumns / kWarp; ++i) {
    const int64_t column = column_begin + i * kWarp + lane;
    ColumnBounds bounds{{0, static_cast<int32_t>(shape.seqlen_q)}, {0, 0}};
    if (column < shape.seqlen_k) {
      const int32_t* numbers =
          mask.startend_row_indices + (mask_index * shape.seqlen_k + column) * mask.width;
      bounds = LowerColumn(mask, numbers, column, shape.seqlen_q, shape.seqlen_k);
      AddColumn(bounds.lower, &range.lower);
      AddColumn(bounds.upper, &range.upper);
    } else {
      // Masked everywhere: never a full tile, and no obstacle to skipping the others.
      range.lower.touch = {0, static_cast<int32_t>(shape.seqlen_q)};
    }
    plan.bounds[warp * kPlanColumns + i * kWarp + lane] =
        make_int4(bounds.lower.begin, bounds.lower.end, bounds.upper.begin, bounds.upper.end);
  }
  range.lower = FoldLanes(range.lower);
  range.upper = FoldLanes(range.upper);
  if (lane == 0) plan.ranges[warp] = range;
}

__global__ void __launch_bounds__(kThreads) PlanCosts(PlanShape shape, MaskPlanView plan) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (warp >= static_cast<int64_t>(plan.num_masks) * plan.num_row_blocks) return;
  const int64_t mask_index = warp / plan.num_row_blocks;
  const int32_t row_begin = static_cast<int32_t>(warp % plan.num_row_blocks) * plan.row_block;
  const int32_t row_end = min(row_begin + plan.row_block, static_cast<int32_t>(shape.seqlen_q));
  int32_t live = 0;
  for (int tile = lane; tile < plan.num_column_tiles; tile += kWarp) {
    const TileRange range = plan.ranges[mask_index * plan.num_column_tiles + tile];
    live += ClassifyTile(range, row_begin, row_end) != TileClass::kSkip;
  }
  live = __reduce_add_sync(kAllLanes, live);
  if (lane == 0) plan.costs[warp] = live;
}

__global__ void __launch_bounds__(kThreads) PlanKeyCosts(PlanShape shape, MaskPlanView plan) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (warp >= static_cast<int64_t>(plan.num_masks) * plan.num_key_blocks) return;
  const int64_t mask_index = warp / plan.num_key_blocks;
  const int tile = static_cast<int>(warp % plan.num_key_blocks) * (kPlanKeyBlock / kPlanColumns);
  const TileRange* ranges = plan.ranges + mask_index * plan.num_column_tiles;
  const bool has_second = tile + 1 < plan.num_column_tiles;
  const TileRange first = ranges[tile];
  const TileRange second = has_second ? ranges[tile + 1] : first;
  const int32_t seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  int32_t live = 0;
  for (int32_t row = lane * kPlanRowStep; row < seqlen_q; row += kWarp * kPlanRowStep) {
    const int32_t row_end = min(row + kPlanRowStep, seqlen_q);
    live += ClassifyPair(first, second, has_second, row, row_end) != TileClass::kSkip;
  }
  live = __reduce_add_sync(kAllLanes, live);
  if (lane == 0) plan.key_costs[warp] = live;
}

// Sorts the blocks of each mask by falling cost; costs and order are [masks, num_blocks].
__global__ void __launch_bounds__(kThreads)
    PlanOrder(const int32_t* all_costs, int32_t* order, int num_blocks) {
  __shared__ int32_t others[kThreads];
  const int64_t mask_index = blockIdx.y;
  const int32_t* costs = all_costs + mask_index * num_blocks;
  const int mine = blockIdx.x * kThreads + threadIdx.x;
  const int32_t cost = mine < num_blocks ? costs[mine] : 0;
  int rank = 0;
  for (int begin = 0; begin < num_blocks; begin += kThreads) {
    __syncthreads();
    if (begin + static_cast<int>(threadIdx.x) < num_blocks) {
      others[threadIdx.x] = costs[begin + threadIdx.x];
    }
    __syncthreads();
    const int count = min(kThreads, num_blocks - begin);
    for (int i = 0; i < count; ++i) {
      rank += others[i] > cost || (others[i] == cost && begin + i > mine);
    }
  }
  if (mine < num_blocks) order[mask_index * num_blocks + rank] = mine;
}

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

unsigned NumBlocks(int64_t work, int64_t per_block) {
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

int32_t Tiles(int64_t size, int64_t tile) { return static_cast<int32_t>((size + tile - 1) / tile); }

// Cuts arrays out of a workspace, or only counts their bytes where it is null.
class Cutter {
 public:
  explicit Cutter(void* workspace) : base_(static_cast<char*>(workspace)) {}

  template <typename T>
  T* Take(int64_t count) {
    char* taken = base_ == nullptr ? nullptr : base_ + used_;
    used_ += Aligned(static_cast<size_t>(count) * sizeof(T));
    return reinterpret_cast<T*>(taken);
  }

  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

size_t CutMaskPlan(const AttentionSizes& sizes, void* workspace, MaskPlanView* plan) {
  plan->num_masks = static_cast<int32_t>(sizes.batch * sizes.num_heads_mask);
  plan->num_key_blocks = Tiles(sizes.seqlen_k, kPlanKeyBlock);
  plan->num_column_tiles = plan->num_key_blocks * (kPlanKeyBlock / kPlanColumns);
  plan->num_row_blocks = Tiles(sizes.seqlen_q, plan->row_block);
  const int64_t masks = plan->num_masks;
  Cutter cutter(workspace);
  plan->bounds = cutter.Take<int4>(masks * plan->num_column_tiles * kPlanColumns);
  plan->ranges = cutter.Take<TileRange>(masks * plan->num_column_tiles);
  plan->costs = cutter.Take<int32_t>(masks * plan->num_row_blocks);
  plan->order = cutter.Take<int32_t>(masks * plan->num_row_blocks);
  plan->key_costs = cutter.Take<int32_t>(masks * plan->num_key_blocks);
  plan->key_order = cutter.Take<int32_t>(masks * plan->num_key_blocks);
  return cutter.used();
}

Status SortBlocks(const int32_t* costs,
                  int32_t* order,
                  int num_blocks,
                  int num_masks,
                  cudaStream_t stream) {
  const dim3 grid(NumBlocks(num_blocks, kThreads), static_cast<unsigned>(num_masks));
  PlanOrder<<<grid, kThreads, 0, stream>>>(costs, order, num_blocks);
  return CudaStatus(cudaGetLastError(), "launch of PlanOrder");
}

}  // namespace

MaskPlanView LayOutMaskPlan(const AttentionSizes& sizes, void* workspace, int row_block) {
  MaskPlanView plan;
  plan.row_block = row_block;
  CutMaskPlan(sizes, workspace, &plan);
  return plan;
}

size_t MaskPlanBytes(const AttentionSizes& sizes, int row_block) {
  MaskPlanView plan;
  plan.row_block = row_block;
  return CutMaskPlan(sizes, nullptr, &plan);
}

Status BuildMaskPlan(const AttentionSizes& sizes,
                     const MaskParams& mask,
                     const MaskPlanView& plan,
                     PlanOrders orders,
                     cudaStream_t stream) {
  const PlanShape shape{sizes.seqlen_q, sizes.seqlen_k};
  const int64_t tiles = static_cast<int64_t>(plan.num_masks) * plan.num_column_tiles;
  if (tiles > 0) {
    PlanColumns<<<NumBlocks(tiles, kWarpsPerBlock), kThreads, 0, stream>>>(shape, mask, plan);
    FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetLastError());
  }
  const bool by_rows = orders == PlanOrders::kRowBlocks;
  const int num_blocks = by_rows ? plan.num_row_blocks : plan.num_key_blocks;
  const int64_t warps = static_cast<int64_t>(plan.num_masks) * num_blocks;
  if (warps == 0) return Status::Ok();
  const auto count = by_rows ? PlanCosts : PlanKeyCosts;
  count<<<NumBlocks(warps, kWarpsPerBlock), kThreads, 0, stream>>>(shape, plan);
  FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetLastError());
  return by_rows ? SortBlocks(plan.costs, plan.order, num_blocks, plan.num_masks, stream)
                 : SortBlocks(plan.key_costs, plan.key_order, num_blocks, plan.num_masks, stream);
}

}  // namespace flashmask
