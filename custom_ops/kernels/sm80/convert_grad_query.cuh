#pragma once

// Query gradients from the float sums of the backward to their tensor.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm80/backward.cuh"
#include "kernels/sm80/fragments.cuh"
#include "kernels/sm80/shared_tile.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

// The summed gradient of one step of rows, in the order of AddGradQuery, to the tensor.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    ConvertGradQuery(const __grid_constant__ BackwardArguments args) {
  using Block = BackwardBlock<Config, true, false>;
  using Element = typename Config::Element;
  constexpr int kRows = Config::kBlockRows;
  constexpr int kHeadDim = Config::kHeadDim;
  constexpr int kWarpRows = kRows / Config::kQueryWarpRows;
  using Chunks = typename Block::QueryChunks;
  __shared__ alignas(128) Element tile[kRows * kHeadDim];
  const uint32_t base = ptx::SharedAddress(tile);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t num_steps = (args.seqlen_q + kRows - 1) / kRows;
  const int64_t step = blockIdx.x % num_steps;
  const int64_t head_of_all = blockIdx.x / num_steps;
  const float4* sum = reinterpret_cast<const float4*>(
      args.grad_query_sum + static_cast<int64_t>(blockIdx.x) * (kRows * kHeadDim));
  // A warp's part, all of it on its way before the first store.
  constexpr int kQuads = Block::kQueryRowTiles * Block::kQueryColumnTiles;
  float4 values[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i) values[i] = __ldcs(sum + (warp * kQuads + i) * 32 + lane);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const int row =
        warp % Config::kQueryWarpRows * kWarpRows + i / Block::kQueryColumnTiles * 16 + lane / 4;
    const int chunk =
        Chunks::First(warp / Config::kQueryWarpRows) + Chunks::Step(i % Block::kQueryColumnTiles);
    const float scale = args.softmax_scale;
    ptx::StoreShared(base + TileOffset<kHeadDim>(row, chunk) + lane % 4 * 4,
                     Pack<Element>(values[i].x * scale, values[i].y * scale));
    ptx::StoreShared(base + TileOffset<kHeadDim>(row + 8, chunk) + lane % 4 * 4,
                     Pack<Element>(values[i].z * scale, values[i].w * scale));
  }
  __syncthreads();
  const TensorView& view = args.grad_query;
  Element* destination =
      static_cast<Element*>(view.data) + head_of_all / args.num_heads * view.batch_stride +
      step * kRows * view.row_stride + head_of_all % args.num_heads * view.head_stride;
  const int rows = static_cast<int>(min(int64_t{kRows}, args.seqlen_q - step * kRows));
  StoreTile<kRows, kHeadDim, Config::kThreads>(base,
                                               destination,
                                               view.row_stride,
                                               rows,
                                               args.head_dim,
                                               threadIdx.x);
}

}  // namespace flashmask::sm80
