// One thread block per query row and head. Its warps take splits in turns, a lane two neighbouring
// elements of each 64 of the head dim, and their sums are added in the order of the warps.

#include "kernels/common/cuda_check.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/scale.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/sm80/combine_splits.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace flashmask::sm80 {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostHeadDim = 256;
constexpr int kLaneElements = 2;
constexpr int kParts = kMostHeadDim / (kWarp * kLaneElements);

struct Arguments {
  SplitResults parts;
  TensorView out;
  float* softmax_lse;
  int64_t num_rows;  // over batch and heads
  int32_t seqlen_q;
  int32_t num_heads;
  int32_t head_dim;
};

template <typename Element>
__global__ void __launch_bounds__(kThreads) CombineSplitsKernel(const Arguments args) {
  __shared__ float2 sums[kWarps][kParts][kWarp];
  const int64_t row_of_all = blockIdx.x;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const float* lse = args.parts.lse_log2 + row_of_all;
  // Each warp forms the same denominator.
  float largest = -INFINITY;
  for (int split = lane; split < args.parts.splits; split += kWarp) {
    largest = fmaxf(largest, lse[split * args.num_rows]);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
  }
  const float shift = largest == -INFINITY ? 0.0f : largest;
  float denominator = 0.0f;
  for (int split = lane; split < args.parts.splits; split += kWarp) {
    denominator += ptx::Exp2(lse[split * args.num_rows] - shift);
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    denominator += __shfl_xor_sync(kAllLanes, denominator, step);
  }
  float2 sum[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) sum[part] = make_float2(0.0f, 0.0f);
#pragma unroll 8
  for (int split = warp; split < args.parts.splits; split += kWarps) {
    const int64_t index = split * args.num_rows + row_of_all;
    const float weight = ptx::Exp2(args.parts.lse_log2[index] - shift);
    const float* from = args.parts.out + index * args.head_dim;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int element = (part * kWarp + lane) * kLaneElements;
      if (element >= args.head_dim) continue;
      const float2 value = *reinterpret_cast<const float2*>(from + element);
      sum[part].x = fmaf(weight, value.x, sum[part].x);
      sum[part].y = fmaf(weight, value.y, sum[part].y);
    }
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) sums[warp][part][lane] = sum[part];
  __syncthreads();
  const int64_t head_of_all = row_of_all / args.seqlen_q;
  const int64_t row = row_of_all % args.seqlen_q;
  const float factor = denominator == 0.0f ? 0.0f : 1.0f / denominator;
  const int element = threadIdx.x * kLaneElements;  // those of part `warp`
  if (warp < kParts && element < args.head_dim) {
    float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      const float2 value = sums[other][warp][lane];
      total.x += value.x;
      total.y += value.y;
    }
    Element* to = static_cast<Element*>(args.out.data) +
                  head_of_all / args.num_heads * args.out.batch_stride + row * args.out.row_stride +
                  head_of_all % args.num_heads * args.out.head_stride + element;
    *reinterpret_cast<uint32_t*>(to) = Pack<Element>(total.x * factor, total.y * factor);
  }
  if (threadIdx.x == 0) {
    args.softmax_lse[row_of_all] =
        denominator == 0.0f ? -INFINITY : (shift + log2f(denominator)) * kLn2;
  }
}

static_assert(kParts <= kWarps, "a thread of the block finishes a pair of elements");

}  // namespace

Status CombineSplits(const ForwardParams& params, const SplitResults& parts, cudaStream_t stream) {
  const AttentionSizes& sizes = params.sizes;
  Arguments args;
  args.parts = parts;
  args.out = params.out;
  args.softmax_lse = params.softmax_lse;
  args.num_rows = sizes.batch * sizes.num_heads * sizes.seqlen_q;
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  if (args.num_rows == 0) return Status::Ok();
  const auto blocks = static_cast<unsigned>(args.num_rows);
  if (params.dtype == DataType::kFloat16) {
    CombineSplitsKernel<__half><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    CombineSplitsKernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(args);
  }
  return CudaStatus(cudaGetLastError(), "launch of CombineSplitsKernel");
}

}  // namespace flashmask::sm80
