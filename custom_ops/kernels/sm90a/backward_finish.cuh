#pragma once

// The small kernels around the sm90a backward: what the ordered sums need beforehand, the summed
// gradient of the query to its tensor afterwards.

#include "kernels/common/device_math.cuh"
#include "kernels/common/mask_plan.h"
#include "kernels/common/row_terms.cuh"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

constexpr int kSmallThreads = 256;

// One warp per word of SumOrder::live_blocks, a key block a lane; live_pairs is zero at the start.
// So many masks in a row belong to the heads of an item.
template <int kRows>
__global__ void __launch_bounds__(kSmallThreads) ListLiveBlocks(MaskPlanView plan,
                                                                int32_t seqlen_q,
                                                                int32_t num_steps,
                                                                int32_t words,
                                                                int32_t masks_of_group,
                                                                uint32_t* live_blocks,
                                                                unsigned long long* live_pairs) {
  constexpr int kTilesPerBlock = kPlanKeyBlock / kPlanColumns;
  __shared__ int32_t pairs;
  const int64_t index = (int64_t{blockIdx.x} * kSmallThreads + threadIdx.x) / kWarp;
  const int lane = threadIdx.x % kWarp;
  const bool exists = index < int64_t{plan.num_masks} * num_steps * words;
  const int64_t mask = index / words / num_steps;
  const int32_t row = static_cast<int32_t>(index / words % num_steps) * kRows;
  const int32_t rank = static_cast<int32_t>(index % words) * kWarp + lane;
  bool live = false;
  if (exists && rank < plan.num_key_blocks) {
    const int64_t order = (mask - mask % masks_of_group) * plan.num_key_blocks;
    const int32_t block = plan.key_order[order + rank];
    const TileRange* ranges =
        plan.ranges + mask * plan.num_column_tiles + int64_t{block} * kTilesPerBlock;
    live = ClassifyPair(ranges[0], ranges[1], true, row, min(row + kRows, seqlen_q)) !=
           TileClass::kSkip;
  }
  if (threadIdx.x == 0) pairs = 0;
  __syncthreads();
  const unsigned bits = __ballot_sync(kAllLanes, live);
  if (exists && lane == 0) {
    live_blocks[index] = bits;
    atomicAdd(&pairs, __popc(bits));
  }
  __syncthreads();
  if (threadIdx.x == 0 && pairs != 0) {
    atomicAdd(live_pairs, static_cast<unsigned long long>(pairs));
  }
}

// A block per step of rows: their RowTerms, and zeros for the sums of grad_query.
template <typename Config>
__global__ void __launch_bounds__(kSmallThreads)
    PrepareRows(const __grid_constant__ BackwardArguments args, const RowTermInputs inputs) {
  constexpr int kQuads = Config::kTileFloats / 4 / kSmallThreads;
  float4* sums = reinterpret_cast<float4*>(args.grad_query_sum) +
                 int64_t{blockIdx.x} * (Config::kTileFloats / 4) + threadIdx.x;
  FindRowTerms<typename Config::Element,
               kSmallThreads,
               Config::kTileWidth / kRowTermChunk,
               Config::kRows>(inputs,
                              int64_t{blockIdx.x / args.num_steps},
                              int64_t{blockIdx.x % args.num_steps} * Config::kRows,
                              [&] {
#pragma unroll
                                for (int i = 0; i < kQuads; ++i) {
                                  sums[i * kSmallThreads] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                                }
                              });
}

// A block per step of rows: its sums, in the order of BackwardConsumer's registers, to the tensor.
template <typename Config>
__global__ void __launch_bounds__(kSmallThreads)
    FinishGradQuery(const __grid_constant__ BackwardArguments args) {
  using Element = typename Config::Element;
  constexpr int kRows = Config::kRows;
  constexpr int kHeadDim = Config::kHeadDim;
  constexpr int kQuads = Config::kGroupSums / 4;
  constexpr int kChunk = 8;                  // elements of a 16-byte store
  constexpr int kPitch = kHeadDim + kChunk;  // spreads a column of quads over the banks
  constexpr bool kHalfColumns = Config::kHalfColumns;
  static_assert(kSmallThreads == Config::kGroups * kWarpgroup, "a thread stands for a consumer's");
  __shared__ alignas(16) Element tile[kRows * kPitch];
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kWarpgroup;
  const int in_group = thread % kWarpgroup;
  const int64_t step = blockIdx.x % args.num_steps;
  const int64_t head_of_all = blockIdx.x / args.num_steps;
  const float4* sums = reinterpret_cast<const float4*>(args.grad_query_sum) +
                       int64_t{blockIdx.x} * (Config::kTileFloats / 4) +
                       group * (kQuads * kWarpgroup) + in_group;
  const int row = in_group / kWarp * 16 + in_group % kWarp / 4 + (kHalfColumns ? 0 : group * 64);
  const int column = in_group % 4 * 2 + (kHalfColumns ? group * Config::kGroupColumns : 0);
  float4 values[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) values[i] = __ldcs(sums + i * kWarpgroup);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float scale = args.softmax_scale;
    Element* to = tile + row * kPitch + column + kChunk * i;
    *reinterpret_cast<uint32_t*>(to) = Pack<Element>(values[i].x * scale, values[i].y * scale);
    *reinterpret_cast<uint32_t*>(to + 8 * kPitch) =
        Pack<Element>(values[i].z * scale, values[i].w * scale);
  }
  __syncthreads();
  const TensorView& view = args.grad_query;
  const int64_t row_begin = step * kRows;
  Element* to = static_cast<Element*>(view.data) +
                head_of_all / args.num_heads * view.batch_stride + row_begin * view.row_stride +
                head_of_all % args.num_heads * view.head_stride;
  const int rows = static_cast<int>(min(int64_t{kRows}, args.seqlen_q - row_begin));
#pragma unroll
  for (int i = thread; i < kRows * kHeadDim / kChunk; i += kSmallThreads) {
    const int r = i / (kHeadDim / kChunk);
    const int c = i % (kHeadDim / kChunk) * kChunk;
    if (r < rows && c < args.head_dim) {
      *reinterpret_cast<uint4*>(to + r * view.row_stride + c) =
          *reinterpret_cast<const uint4*>(tile + r * kPitch + c);
    }
  }
}

// Zeros of a [batch, rows, heads, head_dim] tensor of 16-bit elements, kChunk (16 bytes) a thread.
template <int kChunk>
__global__ void __launch_bounds__(kSmallThreads)
    ClearTensor(TensorView view, int64_t batch, int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t chunks = head_dim / kChunk;
  const int64_t index = int64_t{blockIdx.x} * kSmallThreads + threadIdx.x;
  if (index >= batch * rows * heads * chunks) return;
  const int64_t offset = index / (chunks * heads * rows) * view.batch_stride +
                         index / (chunks * heads) % rows * view.row_stride +
                         index / chunks % heads * view.head_stride + index % chunks * kChunk;
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(view.data) + offset) = make_uint4(0, 0, 0, 0);
}

}  // namespace flashmask::sm90a
