#pragma once

// Which steps of rows are live for a key block.

#include "kernels/common/device_math.cuh"
#include "kernels/common/mask_plan.h"

#include <cstdint>

namespace flashmask {

// The live steps of a key block, one warp together. ClassifyPair (mask_plan.h) in closed form: a
// step is dead if one interval of each of the block's two column tiles covers it, and partial if
// any of their intervals touches it. A block of one tile gives it twice. Lane 0 to 3 holds the
// steps that a pair of intervals covers, lane 4 to 7 those that an interval touches.
template <int kRows>
class LiveSteps {
 public:
  static constexpr int kCoverLanes = 4;
  static constexpr int kLanes = 8;

  // With `descending`, steps are counted from the last.
  __device__ __forceinline__ void Load(const TileRange& first,
                                       const TileRange& second,
                                       int32_t seqlen_q,
                                       int32_t num_steps,
                                       bool descending,
                                       int lane) {
    begin_ = 0;
    end_ = 0;
    if (lane < kCoverLanes) {
      const RowInterval a = (lane % 2 == 0 ? first.lower : first.upper).cover;
      const RowInterval b = (lane / 2 == 0 ? second.lower : second.upper).cover;
      const int32_t begin = Clip(max(a.begin, b.begin), seqlen_q);
      const int32_t end = Clip(min(a.end, b.end), seqlen_q);
      begin_ = (begin + kRows - 1) / kRows;
      end_ = end == seqlen_q ? num_steps : end / kRows;
    } else if (lane < kLanes) {
      const TileRange& range = (lane - kCoverLanes) / 2 == 0 ? first : second;
      const RowInterval touch = (lane % 2 == 0 ? range.lower : range.upper).touch;
      begin_ = Clip(touch.begin, seqlen_q) / kRows;
      end_ = (Clip(touch.end, seqlen_q) + kRows - 1) / kRows;
    }
    if (descending) {
      const int32_t begin = begin_;
      begin_ = num_steps - end_;
      end_ = num_steps - begin;
    }
    is_cover_ = lane < kCoverLanes;
  }

  // The first live step from `step` on, or one past the last step or behind.
  __device__ __forceinline__ int32_t Next(int32_t step) const {
    while (true) {
      const bool covers = is_cover_ && step >= begin_ && step < end_;
      const int32_t after = __reduce_max_sync(kAllLanes, covers ? end_ : 0);
      if (after == 0) return step;
      step = after;
    }
  }

  __device__ __forceinline__ bool IsPartial(int32_t step) const {
    return __any_sync(kAllLanes, !is_cover_ && step >= begin_ && step < end_);
  }

 private:
  static __device__ __forceinline__ int32_t Clip(int32_t row, int32_t seqlen_q) {
    return min(max(row, 0), seqlen_q);
  }

  int32_t begin_;
  int32_t end_;
  bool is_cover_;
};

}  // namespace flashmask
