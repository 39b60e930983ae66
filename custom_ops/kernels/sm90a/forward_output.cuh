#pragma once

// The way of 64 rows of output and lse from a warpgroup's registers to memory.

#include "kernels/sm90a/forward_loader.cuh"
#include "kernels/sm90a/softmax.cuh"

#include <cstdint>

namespace flashmask::sm90a {

// `sums` are weighted values of rows `first` to `first` + 63 of the note's item; `softmax` knows
// their maxima and sums. Rows that see nothing get out 0 and lse -inf.
template <typename Element, int kHeadDim>
__device__ __forceinline__ void StoreOutput(const ForwardArguments& args,
                                            const TileNote& note,
                                            int32_t first,
                                            const OnlineSoftmax& softmax,
                                            const float (&sums)[kHeadDim / 2]) {
  float* lse =
      args.softmax_lse + (int64_t{note.batch} * args.num_heads + note.head) * args.seqlen_q;
  Element* out = static_cast<Element*>(args.out.data) + note.batch * args.out.batch_stride +
                 note.head * args.out.head_stride;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t row = note.row_begin + first + FragmentRow() + 8 * r;
    const float sum = softmax.Sum(r);
    const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
    const bool inside = row < args.seqlen_q;
    if (inside && ptx::ThreadIndex() % 4 == 0) {
      lse[row] = sum == 0.0f ? -INFINITY : softmax.LogSum(r, sum, args.scale_log2);
    }
    StoreRow<Element, kHeadDim>(sums,
                                r,
                                factor,
                                out + row * args.out.row_stride,
                                inside ? args.head_dim : 0);
  }
}

}  // namespace flashmask::sm90a
