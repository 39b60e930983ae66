// See output_dot.h.

#include "kernels/common/cuda_check.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/output_dot.h"
#include "kernels/common/scale.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace flashmask {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockRows = 64;  // at 16 bytes a thread and load, 8 loads each at head dim 128
constexpr int kChunk = 8;       // elements of a 16-byte load
constexpr int kMostRowThreads = 32;

struct Arguments {
  TensorView out;
  TensorView grad_out;  // data null: zero
  const float* softmax_lse;
  const float* grad_softmax_lse;  // null: zero
  RowTerms terms;
  uint32_t blocks_per_head;
  uint32_t num_heads_total;  // over the batch
  int32_t seqlen_q;
  int32_t num_heads;
  int32_t head_dim;
  uint4* cleared;
  int64_t num_cleared;
};

// The sum of products of eight pairs.
template <typename Element>
__device__ __forceinline__ float Dot(const uint4& left, const uint4& right) {
  const uint32_t a[kChunk / 2] = {left.x, left.y, left.z, left.w};
  const uint32_t b[kChunk / 2] = {right.x, right.y, right.z, right.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float2 x = Unpack<Element>(a[i]);
    const float2 y = Unpack<Element>(b[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

// This block's share of what is cleared.
__device__ __forceinline__ void Clear(const Arguments& args) {
  const int64_t share = (args.num_cleared + gridDim.x - 1) / gridDim.x;
  const int64_t begin = share * blockIdx.x;
  const int64_t end = min(begin + share, args.num_cleared);
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    args.cleared[i] = make_uint4(0, 0, 0, 0);
  }
}

// A block per kBlockRows rows of a head; so many threads share a row. All loads of out and grad_out
// are under way before anything waits for one.
template <typename Element, int kRowThreads>
__global__ void __launch_bounds__(kThreads) RowTermsKernel(const Arguments args) {
  constexpr int kPassRows = kThreads / kRowThreads;
  constexpr int kPasses = kBlockRows / kPassRows;
  const uint32_t head_of_all = blockIdx.x / args.blocks_per_head;
  const int64_t first_row = int64_t{blockIdx.x % args.blocks_per_head} * kBlockRows +
                            static_cast<int>(threadIdx.x) / kRowThreads;
  const int column = static_cast<int>(threadIdx.x) % kRowThreads * kChunk;
  const bool is_given =
      head_of_all < args.num_heads_total && args.grad_out.data != nullptr && column < args.head_dim;
  const auto start = [&](const TensorView& view) {
    return static_cast<const Element*>(view.data) +
           head_of_all / args.num_heads * view.batch_stride +
           head_of_all % args.num_heads * view.head_stride + column;
  };
  uint4 out[kPasses];
  uint4 grad_out[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = first_row + i * kPassRows;
    out[i] = make_uint4(0, 0, 0, 0);
    grad_out[i] = out[i];
    if (is_given && row < args.seqlen_q) {
      out[i] = __ldcs(  // nobody else reads it
          reinterpret_cast<const uint4*>(start(args.out) + row * args.out.row_stride));
      grad_out[i] =
          *reinterpret_cast<const uint4*>(start(args.grad_out) + row * args.grad_out.row_stride);
    }
  }
  Clear(args);
  if (head_of_all >= args.num_heads_total) return;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float delta = Dot<Element>(out[i], grad_out[i]);
#pragma unroll
    for (int lanes = kRowThreads / 2; lanes > 0; lanes /= 2) {
      delta += __shfl_xor_sync(0xffffffffu, delta, lanes);
    }
    const int64_t row = first_row + i * kPassRows;
    if (column != 0 || row >= args.terms.padded_rows) continue;
    const int64_t index = int64_t{head_of_all} * args.seqlen_q + row;
    const bool inside = row < args.seqlen_q;
    const float natural = inside ? args.softmax_lse[index] : -INFINITY;
    const float less =
        inside && args.grad_softmax_lse != nullptr ? args.grad_softmax_lse[index] : 0.0f;
    const int64_t to = int64_t{head_of_all} * args.terms.padded_rows + row;
    args.terms.lse_log2[to] = natural == -INFINITY ? INFINITY : natural * kLog2E;
    args.terms.delta[to] = delta - less;
  }
}

template <typename Element>
void Launch(const Arguments& args, unsigned blocks, cudaStream_t stream) {
  const auto kernel = args.head_dim <= 8 * kChunk    ? RowTermsKernel<Element, 8>
                      : args.head_dim <= 16 * kChunk ? RowTermsKernel<Element, 16>
                                                     : RowTermsKernel<Element, kMostRowThreads>;
  kernel<<<blocks, kThreads, 0, stream>>>(args);
}

}  // namespace

Status ComputeRowTerms(const BackwardParams& params,
                       const RowTerms& terms,
                       cudaStream_t stream,
                       void* cleared,
                       size_t cleared_bytes) {
  const AttentionSizes& sizes = params.sizes;
  if (sizes.head_dim > kMostRowThreads * kChunk) {
    return Status::Unsupported("row terms of a head_dim above 256");
  }
  Arguments args;
  args.out = params.out;
  args.grad_out = params.grad_out;
  args.softmax_lse = params.softmax_lse;
  args.grad_softmax_lse = params.grad_softmax_lse;
  args.terms = terms;
  const int64_t heads = sizes.batch * sizes.num_heads;
  const int64_t blocks_per_head = (terms.padded_rows + kBlockRows - 1) / kBlockRows;
  args.blocks_per_head = static_cast<uint32_t>(std::max<int64_t>(1, blocks_per_head));
  args.num_heads_total = static_cast<uint32_t>(blocks_per_head > 0 ? heads : 0);
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  args.cleared = static_cast<uint4*>(cleared);
  args.num_cleared = static_cast<int64_t>(cleared_bytes / sizeof(uint4));
  const int64_t blocks = heads * blocks_per_head;
  if (blocks == 0 && args.num_cleared == 0) return Status::Ok();
  const auto launched = static_cast<unsigned>(std::max<int64_t>(1, blocks));
  if (params.dtype == DataType::kFloat16) {
    Launch<__half>(args, launched, stream);
  } else {
    Launch<__nv_bfloat16>(args, launched, stream);
  }
  return CudaStatus(cudaGetLastError(), "launch of RowTermsKernel");
}

}  // namespace flashmask
