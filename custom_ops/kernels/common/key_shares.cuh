#pragma once

// Key blocks of a backward that several work items share.
//
// A batch with few key heads, or a short one, has too few key blocks for all multiprocessors, or so
// few that those with the longest work alone in the end. Then the rows that see a key block are
// shared: by query heads of the group first, and, if these do not suffice, by runs of live steps.
// Each share gives its own grad_key and grad_value, in the tensors' dtype, as one would get from
// keys repeated for the heads of a group; SumShares adds them in float, in a fixed order. How many
// shares there are follows from the sizes alone, so shares change no bits from run to run.

#include "core/diagnostics.h"
#include "core/params.h"
#include "core/status.h"
#include "kernels/common/cuda_check.h"
#include "kernels/common/device_math.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace flashmask {

// How many work items share a key block: by heads of the group, times by runs of live steps.
struct KeyShares {
  int32_t heads = 1;
  int32_t rows = 1;

  __host__ __device__ constexpr int32_t Count() const { return heads * rows; }
};

// Times the items wanted, where a group has few divisors: what shares leave is 4 * head_dim bytes a
// key and share, at most 132 MiB.
constexpr int64_t kMostShares = 4;

// Shares for `wanted` items (BackwardItemsWanted, or a part of it where items are longer), of
// blocks of block_keys keys and at most most_rows runs. Runs cost more than heads do, as they are
// short, and are wanted for half as many items only.
inline KeyShares SharesOf(const AttentionSizes& sizes,
                          int64_t wanted,
                          int64_t block_keys,
                          int64_t most_rows) {
  const int64_t blocks = (sizes.seqlen_k + block_keys - 1) / block_keys;
  const int64_t items = std::max<int64_t>(1, sizes.batch * sizes.num_heads_k * blocks);
  const int64_t group = sizes.num_heads / std::max<int64_t>(1, sizes.num_heads_k);
  int64_t heads = 1;
  for (int64_t more = 2; more <= group && items * heads < wanted; ++more) {
    if (group % more == 0 && items * more <= kMostShares * wanted) heads = more;
  }
  KeyShares shares;
  shares.heads = static_cast<int32_t>(heads);
  shares.rows = static_cast<int32_t>(
      std::clamp<int64_t>(wanted / 2 / (items * heads), 1, std::max<int64_t>(1, most_rows)));
  return shares;
}

// Where work items leave the gradients of their keys.
struct KeyGradients {
  TensorView key;
  TensorView value;
  int64_t num_heads;
};

// Elements of a tensor of shares: [B, Sk, Hk, shares, head_dim].
inline int64_t SharedElements(const AttentionSizes& sizes, const KeyShares& shares) {
  return sizes.batch * sizes.seqlen_k * sizes.num_heads_k * shares.Count() * sizes.head_dim;
}

// Floats of workspace for both tensors of shares.
inline int64_t SharedFloats(const AttentionSizes& sizes, const KeyShares& shares) {
  return shares.Count() == 1 ? 0 : SharedElements(sizes, shares);
}

// The tensors themselves, or, where key blocks are shared, two tensors of shares at `memory`.
inline KeyGradients KeyGradientsOf(const BackwardParams& params,
                                   const KeyShares& shares,
                                   void* memory) {
  const AttentionSizes& sizes = params.sizes;
  if (shares.Count() == 1) return {params.grad_key, params.grad_value, sizes.num_heads_k};
  const int64_t heads = sizes.num_heads_k * shares.Count();
  const int64_t row = heads * sizes.head_dim;
  const TensorView key{memory, sizes.seqlen_k * row, row, sizes.head_dim};
  TensorView value = key;
  value.data = static_cast<uint16_t*>(memory) + SharedElements(sizes, shares);
  return {key, value, heads};
}

constexpr int kSumThreads = 256;

// A thread sums the shares of eight neighbours of grad_key (blockIdx.y 0) or grad_value (1), both
// of [batch, rows, heads, head_dim].
template <typename Element>
__global__ void __launch_bounds__(kSumThreads) SumShares(const uint4* shares,
                                                         int32_t num_shares,
                                                         TensorView grad_key,
                                                         TensorView grad_value,
                                                         int64_t chunks,
                                                         int64_t rows,
                                                         int64_t heads,
                                                         int64_t chunks_of_row) {
  constexpr int kChunk = 8;  // elements of a 16-byte load
  const int64_t index = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (index >= chunks) return;
  const int64_t chunk = index % chunks_of_row;
  const int64_t head = index / chunks_of_row % heads;
  const int64_t row = index / (chunks_of_row * heads) % rows;
  const int64_t batch = index / (chunks_of_row * heads * rows);
  const uint4* from = shares + (blockIdx.y * chunks + index - chunk) * num_shares + chunk;
  float sums[kChunk] = {};
  for (int32_t i = 0; i < num_shares; ++i) {
    const uint4 values = __ldcs(from + i * chunks_of_row);
    const uint32_t pairs[kChunk / 2] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int j = 0; j < kChunk / 2; ++j) {
      const float2 pair = Unpack<Element>(pairs[j]);
      sums[2 * j] += pair.x;
      sums[2 * j + 1] += pair.y;
    }
  }
  const TensorView& view = blockIdx.y == 0 ? grad_key : grad_value;
  Element* to = static_cast<Element*>(view.data) + batch * view.batch_stride +
                row * view.row_stride + head * view.head_stride + chunk * kChunk;
  *reinterpret_cast<uint4*>(to) = make_uint4(Pack<Element>(sums[0], sums[1]),
                                             Pack<Element>(sums[2], sums[3]),
                                             Pack<Element>(sums[4], sums[5]),
                                             Pack<Element>(sums[6], sums[7]));
}

// From `given`, where the work items have left their gradients, to the tensors.
template <typename Element>
Status LaunchSumShares(const BackwardParams& params,
                       const KeyShares& shares,
                       const KeyGradients& given) {
  if (shares.Count() == 1) return Status::Ok();
  constexpr int64_t kChunk = 8;
  const AttentionSizes& sizes = params.sizes;
  const int64_t chunks_of_row = sizes.head_dim / kChunk;
  const int64_t chunks = sizes.batch * sizes.seqlen_k * sizes.num_heads_k * chunks_of_row;
  const dim3 blocks(static_cast<unsigned>((chunks + kSumThreads - 1) / kSumThreads), 2);
  SumShares<Element>
      <<<blocks, kSumThreads, 0, static_cast<cudaStream_t>(params.execution.stream)>>>(
          static_cast<const uint4*>(given.key.data),
          shares.Count(),
          params.grad_key,
          params.grad_value,
          chunks,
          sizes.seqlen_k,
          sizes.num_heads_k,
          chunks_of_row);
  return CudaStatus(cudaGetLastError(), "launch of SumShares");
}

}  // namespace flashmask
