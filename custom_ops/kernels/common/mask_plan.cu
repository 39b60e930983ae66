// Kernels that build a mask's plan; see mask_plan.h.
//
// PlanColumns  one warp per 64 columns, two columns a lane: lowers the numbers to bounds, stores
//              them, and folds them to one range by warp reductions.
// PlanBlocks   one warp per row block: classifies its tiles, 32 at a time, and counts live ones; or
//              one per key block, which counts its live steps of rows. The thread block that is the
//              last of its mask to finish orders: the rank of a block is the number of those with a
//              higher cost, or the same and a larger row, so the order is a function of the mask
//              alone; or it is its place. It also sums the costs of key blocks.
// PlanShort    all that by one thread block per mask.
// The first kernel also clears what those behind the plan count in.

#include "kernels/common/cuda_check.h"
#include "kernels/common/mask_plan.h"

#include <algorithm>
#include <string>

namespace flashmask {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kMostThreads = 1024;
constexpr int kWarpsPerBlock = kThreads / kWarp;
// Masks of at most so many ranges and blocks are planned by one kernel: a launch less on the host
// is worth more there than a few microseconds on the device.
constexpr int kShortTiles = 128;
constexpr unsigned kMostMasks = 65535;  // of a grid's second axis
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

// A warp lowers the columns of one range; `tile_of_all` counts over the masks.
__device__ __forceinline__ void LowerTile(const PlanShape& shape,
                                          const MaskParams& mask,
                                          const MaskPlanView& plan,
                                          int64_t tile_of_all,
                                          int lane) {
  const int64_t mask_index = tile_of_all / plan.num_column_tiles;
  const int64_t column_begin = tile_of_all % plan.num_column_tiles * kPlanColumns;
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
    plan.bounds[tile_of_all * kPlanColumns + i * kWarp + lane] =
        make_int4(bounds.lower.begin, bounds.lower.end, bounds.upper.begin, bounds.upper.end);
  }
  range.lower = FoldLanes(range.lower);
  range.upper = FoldLanes(range.upper);
  if (lane == 0) plan.ranges[tile_of_all] = range;
}

// What is counted and sorted of one mask: row blocks by live tiles, or key blocks by live steps.
struct Blocks {
  const TileRange* ranges;
  int32_t* costs;
  int32_t* order;
  int64_t* key_sum;
  int32_t count;
  int32_t num_column_tiles;
  int32_t row_block;
  int32_t seqlen_q;
};

__device__ __forceinline__ Blocks BlocksOf(const PlanShape& shape,
                                           const MaskPlanView& plan,
                                           int64_t mask_index,
                                           bool by_rows) {
  Blocks blocks;
  blocks.count = by_rows ? plan.num_row_blocks : plan.num_key_blocks;
  blocks.ranges = plan.ranges + mask_index * plan.num_column_tiles;
  blocks.costs = (by_rows ? plan.costs : plan.key_costs) + mask_index * blocks.count;
  blocks.order = (by_rows ? plan.order : plan.key_order) + mask_index * blocks.count;
  blocks.key_sum = plan.key_sums + mask_index;
  blocks.num_column_tiles = plan.num_column_tiles;
  blocks.row_block = plan.row_block;
  blocks.seqlen_q = static_cast<int32_t>(shape.seqlen_q);
  return blocks;
}

// A warp counts what is live of one block.
__device__ __forceinline__ void CountLive(const Blocks& blocks, bool by_rows, int block, int lane) {
  int32_t live = 0;
  if (by_rows) {
    const int32_t row_begin = block * blocks.row_block;
    const int32_t row_end = min(row_begin + blocks.row_block, blocks.seqlen_q);
    for (int tile = lane; tile < blocks.num_column_tiles; tile += kWarp) {
      live += ClassifyTile(blocks.ranges[tile], row_begin, row_end) != TileClass::kSkip;
    }
  } else {
    const int tile = block * (kPlanKeyBlock / kPlanColumns);
    const bool has_second = tile + 1 < blocks.num_column_tiles;
    const TileRange first = blocks.ranges[tile];
    const TileRange second = has_second ? blocks.ranges[tile + 1] : first;
    for (int32_t row = lane * kPlanRowStep; row < blocks.seqlen_q; row += kWarp * kPlanRowStep) {
      const int32_t row_end = min(row + kPlanRowStep, blocks.seqlen_q);
      live += ClassifyPair(first, second, has_second, row, row_end) != TileClass::kSkip;
    }
  }
  live = __reduce_add_sync(kAllLanes, live);
  if (lane == 0) blocks.costs[block] = live;
}

// All threads of a thread block call this when they have written their costs. Tells whether those
// of the whole mask are there.
__device__ __forceinline__ bool IsLastToFinish(int32_t* finished) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(finished, 1) == static_cast<int32_t>(gridDim.x) - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// Sorts the blocks of a mask by falling cost; all kThreads_ threads of a thread block call it.
template <int kThreads_>
__device__ __forceinline__ void SortByCost(const Blocks& blocks) {
  __shared__ int32_t others[kThreads_];
  const int thread = threadIdx.x;
  for (int first = 0; first < blocks.count; first += kThreads_) {
    const int mine = first + thread;
    const int32_t cost = mine < blocks.count ? __ldcg(blocks.costs + mine) : 0;
    int rank = 0;
    for (int begin = 0; begin < blocks.count; begin += kThreads_) {
      __syncthreads();
      if (begin + thread < blocks.count) others[thread] = __ldcg(blocks.costs + begin + thread);
      __syncthreads();
      const int count = min(kThreads_, blocks.count - begin);
      for (int i = 0; i < count; ++i) {
        rank += others[i] > cost || (others[i] == cost && begin + i > mine);
      }
    }
    if (mine < blocks.count) blocks.order[rank] = mine;
  }
}

// One warp: the sum of the costs of key blocks.
__device__ __forceinline__ int64_t SumCosts(const Blocks& blocks, int lane) {
  int64_t sum = 0;
  for (int block = lane; block < blocks.count; block += kWarp) sum += __ldcg(blocks.costs + block);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, offset);
  }
  if (lane == 0) *blocks.key_sum = sum;
  return sum;
}

// One warp: blocks by place, long ones last.
__device__ __forceinline__ void OrderByPlace(const Blocks& blocks, int64_t sum, int lane) {
  int32_t long_before = 0;
  for (int first = 0; first < blocks.count; first += kWarp) {
    const int block = first + lane;
    const int64_t cost = block < blocks.count ? __ldcg(blocks.costs + block) : 0;
    const bool is_long = IsLongKeyBlock(cost, sum, blocks.count);
    const unsigned long_lanes = __ballot_sync(kAllLanes, is_long);
    const int32_t before = long_before + __popc(long_lanes & ((1u << lane) - 1));
    if (block < blocks.count) {
      blocks.order[is_long ? blocks.count - 1 - before : block - before] = block;
    }
    long_before += __popc(long_lanes);
  }
}

// All threads of a thread block call it.
template <PlanOrders kOrders, int kThreads_>
__device__ __forceinline__ void Order(const Blocks& blocks, bool by_rows) {
  if (kOrders != PlanOrders::kKeyPlaces) SortByCost<kThreads_>(blocks);
  if (by_rows || threadIdx.x >= kWarp) return;
  const int64_t sum = SumCosts(blocks, threadIdx.x);
  if (kOrders == PlanOrders::kKeyPlaces) OrderByPlace(blocks, sum, threadIdx.x);
}

// All threads of the grid call it.
__device__ __forceinline__ void Clear(const ClearedBytes& cleared) {
  auto* quads = static_cast<uint4*>(cleared.begin);
  const size_t count = cleared.count / sizeof(uint4);
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    quads[i] = make_uint4(0, 0, 0, 0);
  }
}

__global__ void __launch_bounds__(kThreads)
    PlanColumns(PlanShape shape, MaskParams mask, MaskPlanView plan, ClearedBytes cleared) {
  Clear(cleared);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t counters = int64_t{2} * plan.num_masks;
  for (int64_t i = warp * kWarp + lane; i < counters; i += int64_t{gridDim.x} * kThreads) {
    plan.finished[i] = 0;
  }
  if (warp >= static_cast<int64_t>(plan.num_masks) * plan.num_column_tiles) return;
  LowerTile(shape, mask, plan, warp, lane);
}

// grid: blocks of warps by masks by orders, of rows first if there are two.
template <PlanOrders kOrders>
__global__ void __launch_bounds__(kThreads) PlanBlocks(PlanShape shape, MaskPlanView plan) {
  const bool by_rows =
      kOrders == PlanOrders::kRowBlocks || (kOrders == PlanOrders::kBoth && blockIdx.z == 0);
  const Blocks blocks = BlocksOf(shape, plan, blockIdx.y, by_rows);
  const int block = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (block < blocks.count) CountLive(blocks, by_rows, block, threadIdx.x % kWarp);
  if (IsLastToFinish(plan.finished + blockIdx.z * gridDim.y + blockIdx.y)) {
    Order<kOrders, kThreads>(blocks, by_rows);
  }
}

// A thread block counts and orders the blocks of a mask.
template <PlanOrders kOrders>
__device__ __forceinline__ void CountAndOrder(const PlanShape& shape,
                                              const MaskPlanView& plan,
                                              bool by_rows) {
  const Blocks blocks = BlocksOf(shape, plan, blockIdx.x, by_rows);
  for (int block = threadIdx.x / kWarp; block < blocks.count; block += kMostThreads / kWarp) {
    CountLive(blocks, by_rows, block, threadIdx.x % kWarp);
  }
  __syncthreads();
  Order<kOrders, kMostThreads>(blocks, by_rows);
}

// Everything of a short mask.
template <PlanOrders kOrders>
__global__ void __launch_bounds__(kMostThreads)
    PlanShort(PlanShape shape, MaskParams mask, MaskPlanView plan, ClearedBytes cleared) {
  Clear(cleared);
  const int warp = threadIdx.x / kWarp;
  for (int tile = warp; tile < plan.num_column_tiles; tile += kMostThreads / kWarp) {
    const int64_t tile_of_all = int64_t{blockIdx.x} * plan.num_column_tiles + tile;
    LowerTile(shape, mask, plan, tile_of_all, threadIdx.x % kWarp);
  }
  __syncthreads();
  constexpr bool kRows = kOrders == PlanOrders::kRowBlocks || kOrders == PlanOrders::kBoth;
  if (kRows) CountAndOrder<kOrders>(shape, plan, true);
  if (kOrders != PlanOrders::kRowBlocks) CountAndOrder<kOrders>(shape, plan, false);
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
  plan->key_sums = cutter.Take<int64_t>(masks);
  plan->finished = cutter.Take<int32_t>(2 * masks);
  return cutter.used();
}

Status LaunchColumns(const AttentionSizes& sizes,
                     const MaskParams& mask,
                     const MaskPlanView& plan,
                     cudaStream_t stream,
                     const ClearedBytes& cleared) {
  const int64_t tiles = static_cast<int64_t>(plan.num_masks) * plan.num_column_tiles;
  const unsigned column_blocks = std::max(1u, NumBlocks(tiles, kWarpsPerBlock));
  const PlanShape shape{sizes.seqlen_q, sizes.seqlen_k};
  PlanColumns<<<column_blocks, kThreads, 0, stream>>>(shape, mask, plan, cleared);
  return CudaStatus(cudaGetLastError(), "launch of PlanColumns");
}

template <PlanOrders kOrders>
Status Launch(const AttentionSizes& sizes,
              const MaskParams& mask,
              const MaskPlanView& plan,
              cudaStream_t stream,
              const ClearedBytes& cleared) {
  constexpr bool kBoth = kOrders == PlanOrders::kBoth;
  const int32_t rows = kBoth || kOrders == PlanOrders::kRowBlocks ? plan.num_row_blocks : 0;
  const int32_t keys = kOrders == PlanOrders::kRowBlocks ? 0 : plan.num_key_blocks;
  const int32_t num_blocks = std::max(rows, keys);
  const auto masks = static_cast<unsigned>(plan.num_masks);
  const PlanShape shape{sizes.seqlen_q, sizes.seqlen_k};
  if (std::max(plan.num_column_tiles, num_blocks) <= kShortTiles) {
    PlanShort<kOrders><<<masks, kMostThreads, 0, stream>>>(shape, mask, plan, cleared);
    return CudaStatus(cudaGetLastError(), "launch of PlanShort");
  }
  const Status lowered = LaunchColumns(sizes, mask, plan, stream, cleared);
  if (!lowered.ok() || num_blocks == 0) return lowered;
  if (masks > kMostMasks) {
    return Status::Unsupported("at most " + std::to_string(kMostMasks) +
                               " masks (batch times mask heads) of more than " +
                               std::to_string(kShortTiles) + " blocks of rows or of 64 keys; got " +
                               std::to_string(masks));
  }
  const dim3 grid(NumBlocks(num_blocks, kWarpsPerBlock), masks, kBoth ? 2 : 1);
  PlanBlocks<kOrders><<<grid, kThreads, 0, stream>>>(shape, plan);
  return CudaStatus(cudaGetLastError(), "launch of PlanBlocks");
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
                     cudaStream_t stream,
                     const ClearedBytes& cleared) {
  if (plan.num_masks == 0) return Status::Ok();
  switch (orders) {
    case PlanOrders::kRowBlocks:
      return Launch<PlanOrders::kRowBlocks>(sizes, mask, plan, stream, cleared);
    case PlanOrders::kKeyBlocks:
      return Launch<PlanOrders::kKeyBlocks>(sizes, mask, plan, stream, cleared);
    case PlanOrders::kBoth:
      return Launch<PlanOrders::kBoth>(sizes, mask, plan, stream, cleared);
    case PlanOrders::kKeyPlaces:
      return Launch<PlanOrders::kKeyPlaces>(sizes, mask, plan, stream, cleared);
    case PlanOrders::kNone:
      break;
  }
  return LaunchColumns(sizes, mask, plan, stream, cleared);
}

}  // namespace flashmask
