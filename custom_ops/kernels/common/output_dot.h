#pragma once

// What a backward needs of each query row beside its tensors, in float, rows padded to whole steps:
//   lse_log2  log2 of the softmax denominator, +inf for rows that saw nothing and for padding,
//             so that their weights exp2(score - lse_log2) come out 0 without a test
//   delta     out . grad_out, less the gradient of lse

#include "core/params.h"
#include "core/status.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace flashmask {

struct RowTerms {
  float* lse_log2 = nullptr;  // [B, Hq, padded_rows]
  float* delta = nullptr;     // [B, Hq, padded_rows]
  int64_t padded_rows = 0;
};

// Also sets `cleared_bytes` at `cleared` to 0 (16-byte aligned, a multiple of 16), on the way: what
// a backward adds up in.
Status ComputeRowTerms(const BackwardParams& params,
                       const RowTerms& terms,
                       cudaStream_t stream,
                       void* cleared = nullptr,
                       size_t cleared_bytes = 0);

}  // namespace flashmask
