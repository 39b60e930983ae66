#pragma once

// One result from those of the splits of the keys of a call (few_rows.h).

#include "core/params.h"
#include "core/status.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

// What each split makes of its part of the keys.
struct SplitResults {
  float* out = nullptr;       // [splits, B, Hq, Sq, D]: as if there were no other keys
  float* lse_log2 = nullptr;  // [splits, B, Hq, Sq]: log2 of its softmax denominators, -inf: none
  int32_t splits = 1;
};

// Enqueues the kernel that fills out and softmax_lse of the call. The order of sums is fixed.
Status CombineSplits(const ForwardParams& params, const SplitResults& parts, cudaStream_t stream);

}  // namespace flashmask::sm80
