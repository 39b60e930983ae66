// See output_dot.h.

#include "kernels/common/cuda_check.h"
#include "kernels/common/output_dot.h"
#include "kernels/common/row_terms.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

namespace flashmask {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockRows = 64;  // at 16 bytes a thread and load, 8 loads each at head dim 128
constexpr int kMostRowThreads = 32;

struct Arguments {
  RowTermInputs inputs;
  uint32_t blocks_per_head;
  uint32_t num_heads_total;  // over the batch
  uint4* cleared;
  int64_t num_cleared;
};

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

// A block per kBlockRows rows of a head; so many threads share a row.
template <typename Element, int kRowThreads>
__global__ void __launch_bounds__(kThreads) RowTermsKernel(const Arguments args) {
  const uint32_t head_of_all = blockIdx.x / args.blocks_per_head;
  if (head_of_all >= args.num_heads_total) return Clear(args);
  FindRowTerms<Element, kThreads, kRowThreads, kBlockRows>(
      args.inputs,
      head_of_all,
      int64_t{blockIdx.x % args.blocks_per_head} * kBlockRows,
      [&] { Clear(args); });
}

template <typename Element>
void Launch(const Arguments& args, unsigned blocks, cudaStream_t stream) {
  const int chunks = (args.inputs.head_dim + kRowTermChunk - 1) / kRowTermChunk;
  const auto kernel = chunks <= 8    ? RowTermsKernel<Element, 8>
                      : chunks <= 16 ? RowTermsKernel<Element, 16>
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
  if (sizes.head_dim > kMostRowThreads * kRowTermChunk) {
    return Status::Unsupported("row terms of a head_dim above 256");
  }
  Arguments args;
  args.inputs = RowTermInputsOf(params, terms);
  const int64_t heads = sizes.batch * sizes.num_heads;
  const int64_t blocks_per_head = (terms.padded_rows + kBlockRows - 1) / kBlockRows;
  args.blocks_per_head = static_cast<uint32_t>(std::max<int64_t>(1, blocks_per_head));
  args.num_heads_total = static_cast<uint32_t>(blocks_per_head > 0 ? heads : 0);
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
