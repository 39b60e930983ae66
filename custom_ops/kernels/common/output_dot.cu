// One warp per query row; see output_dot.h.

#include "kernels/common/cuda_check.h"
#include "kernels/common/output_dot.h"
#include "kernels/common/scale.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace flashmask {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarp;
constexpr int kChunk = 8;  // elements of a 16-byte load

struct Arguments {
  TensorView out;
  TensorView grad_out;  // data null: zero
  const float* softmax_lse;
  const float* grad_softmax_lse;  // null: zero
  RowTerms terms;
  int64_t num_rows;  // over batch and heads, padded
  int32_t seqlen_q;
  int32_t num_heads;
  int32_t head_dim;
  uint4* cleared;
  int64_t num_cleared;
};

__device__ __forceinline__ float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float ToFloat(__half value) { return __half2float(value); }

template <typename Element>
__device__ __forceinline__ float Dot(const Element* a, const Element* b, int head_dim, int lane) {
  float sum = 0.0f;
  for (int d = lane * kChunk; d < head_dim; d += kWarp * kChunk) {
    const uint4 left = *reinterpret_cast<const uint4*>(a + d);
    const uint4 right = *reinterpret_cast<const uint4*>(b + d);
    const Element* x = reinterpret_cast<const Element*>(&left);
    const Element* y = reinterpret_cast<const Element*>(&right);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum = fmaf(ToFloat(x[i]), ToFloat(y[i]), sum);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

template <typename Element>
__global__ void __launch_bounds__(kThreads) RowTermsKernel(const Arguments args) {
  const int64_t row_of_all =
      static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  for (int64_t i = row_of_all * kWarp + lane; i < args.num_cleared;
       i += int64_t{gridDim.x} * kThreads) {
    args.cleared[i] = make_uint4(0, 0, 0, 0);
  }
  if (row_of_all >= args.num_rows) return;
  const int64_t row = row_of_all % args.terms.padded_rows;
  const int64_t head_of_all = row_of_all / args.terms.padded_rows;
  const int64_t batch = head_of_all / args.num_heads;
  const int64_t head = head_of_all % args.num_heads;
  float lse = INFINITY;
  float delta = 0.0f;
  if (row < args.seqlen_q) {
    const int64_t index = head_of_all * args.seqlen_q + row;
    const float natural = args.softmax_lse[index];
    lse = natural == -INFINITY ? INFINITY : natural * kLog2E;
    if (args.grad_out.data != nullptr) {
      const auto at = [&](const TensorView& view) {
        return static_cast<const Element*>(view.data) + batch * view.batch_stride +
               row * view.row_stride + head * view.head_stride;
      };
      delta = Dot(at(args.out), at(args.grad_out), args.head_dim, lane);
    }
    if (args.grad_softmax_lse != nullptr) delta -= args.grad_softmax_lse[index];
  }
  if (lane == 0) {
    args.terms.lse_log2[row_of_all] = lse;
    args.terms.delta[row_of_all] = delta;
  }
}

}  // namespace

Status ComputeRowTerms(const BackwardParams& params,
                       const RowTerms& terms,
                       cudaStream_t stream,
                       void* cleared,
                       size_t cleared_bytes) {
  const AttentionSizes& sizes = params.sizes;
  Arguments args;
  args.out = params.out;
  args.grad_out = params.grad_out;
  args.softmax_lse = params.softmax_lse;
  args.grad_softmax_lse = params.grad_softmax_lse;
  args.terms = terms;
  args.num_rows = sizes.batch * sizes.num_heads * terms.padded_rows;
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  args.cleared = static_cast<uint4*>(cleared);
  args.num_cleared = static_cast<int64_t>(cleared_bytes / sizeof(uint4));
  if (args.num_rows == 0 && args.num_cleared == 0) return Status::Ok();
  const auto blocks =
      std::max(1u, static_cast<unsigned>((args.num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock));
  if (params.dtype == DataType::kFloat16) {
    RowTermsKernel<__half><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    RowTermsKernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(args);
  }
  return CudaStatus(cudaGetLastError(), "launch of RowTermsKernel");
}

}  // namespace flashmask
