#pragma once

// RowTerms of the rows of a block, for kernels that clear something while their loads are under
// way.

#include "core/params.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/output_dot.h"
#include "kernels/common/scale.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask {

struct RowTermInputs {
  TensorView out;
  TensorView grad_out;            // data null: zero
  const float* softmax_lse;       // [B, Hq, Sq]
  const float* grad_softmax_lse;  // [B, Hq, Sq]; null: zero
  RowTerms terms;
  int32_t seqlen_q;
  int32_t num_heads;
  int32_t head_dim;
};

inline RowTermInputs RowTermInputsOf(const BackwardParams& params, const RowTerms& terms) {
  return {params.out,
          params.grad_out,
          params.softmax_lse,
          params.grad_softmax_lse,
          terms,
          static_cast<int32_t>(params.sizes.seqlen_q),
          static_cast<int32_t>(params.sizes.num_heads),
          static_cast<int32_t>(params.sizes.head_dim)};
}

constexpr int kRowTermChunk = 8;  // elements of a 16-byte load

// The sum of products of eight pairs.
template <typename Element>
__device__ __forceinline__ float Dot(const uint4& left, const uint4& right) {
  constexpr int kPairs = kRowTermChunk / 2;
  const uint32_t a[kPairs] = {left.x, left.y, left.z, left.w};
  const uint32_t b[kPairs] = {right.x, right.y, right.z, right.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const float2 x = Unpack<Element>(a[i]);
    const float2 y = Unpack<Element>(b[i]);
    sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
  }
  return sum;
}

// Writes the terms of kRows rows of a head from `first_row` on, kRowThreads threads a row. All
// loads of out and grad_out are under way before `meanwhile` is called and before anything waits
// for one.
template <typename Element,
          int kThreads,
          int kRowThreads,
          int kRows,
          typename Head,
          typename Meanwhile>
__device__ __forceinline__ void FindRowTerms(const RowTermInputs& inputs,
                                             Head head_of_all,
                                             int64_t first_row,
                                             const Meanwhile& meanwhile) {
  constexpr int kPassRows = kThreads / kRowThreads;
  constexpr int kPasses = kRows / kPassRows;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t own_row = first_row + thread / kRowThreads;
  const int column = thread % kRowThreads * kRowTermChunk;
  const bool is_given = inputs.grad_out.data != nullptr && column < inputs.head_dim;
  const auto start = [&](const TensorView& view) {
    return static_cast<const Element*>(view.data) +
           head_of_all / inputs.num_heads * view.batch_stride +
           head_of_all % inputs.num_heads * view.head_stride + column;
  };
  uint4 out[kPasses];
  uint4 grad_out[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int64_t row = own_row + i * kPassRows;
    out[i] = make_uint4(0, 0, 0, 0);
    grad_out[i] = out[i];
    if (is_given && row < inputs.seqlen_q) {
      out[i] = __ldcs(  // nobody else reads it
          reinterpret_cast<const uint4*>(start(inputs.out) + row * inputs.out.row_stride));
      grad_out[i] = *reinterpret_cast<const uint4*>(start(inputs.grad_out) +
                                                    row * inputs.grad_out.row_stride);
    }
  }
  meanwhile();
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    float delta = Dot<Element>(out[i], grad_out[i]);
#pragma unroll
    for (int lanes = kRowThreads / 2; lanes > 0; lanes /= 2) {
      delta += __shfl_xor_sync(0xffffffffu, delta, lanes);
    }
    const int64_t row = own_row + i * kPassRows;
    if (column != 0 || row >= inputs.terms.padded_rows) continue;
    const int64_t index = int64_t{head_of_all} * inputs.seqlen_q + row;
    const bool inside = row < inputs.seqlen_q;
    const float natural = inside ? inputs.softmax_lse[index] : -INFINITY;
    const float less =
        inside && inputs.grad_softmax_lse != nullptr ? inputs.grad_softmax_lse[index] : 0.0f;
    const int64_t to = int64_t{head_of_all} * inputs.terms.padded_rows + row;
    inputs.terms.lse_log2[to] = natural == -INFINITY ? INFINITY : natural * kLog2E;
    inputs.terms.delta[to] = delta - less;
  }
}

}  // namespace flashmask
