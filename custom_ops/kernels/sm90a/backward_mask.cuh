#pragma once

// The mask as the sm90a backward sees it: which steps of rows of a key block are live, and which
// rows of a step each key masks.

#include "kernels/common/mask_plan.h"
#include "kernels/ptx/arithmetic.h"

#include <cstdint>

namespace flashmask::sm90a {

constexpr unsigned kAllLanes = 0xffffffffu;

// The live steps of a key block, one warp together. ClassifyPair (mask_plan.h) in closed form: a
// step is dead if one interval of each of the block's two column tiles covers it, and partial if
// any of their intervals touches it. A block of one tile gives it twice. Lane 0 to 3 holds the
// steps that a pair of intervals covers, lane 4 to 7 those that an interval touches; from lane 8 on
// lanes hold the same, a round of all steps later.
template <int kRows>
class LiveSteps {
 public:
  static constexpr int kCoverLanes = 4;
  static constexpr int kLanes = 8;

  // Steps are counted from `first_step` on and then from the first, or, with `descending`, from the
  // last.
  __device__ __forceinline__ void Load(const TileRange& first,
                                       const TileRange& second,
                                       int32_t seqlen_q,
                                       int32_t num_steps,
                                       bool descending,
                                       int32_t first_step,
                                       int lane) {
    const int kind = lane % kLanes;
    if (kind < kCoverLanes) {
      const RowInterval a = (kind % 2 == 0 ? first.lower : first.upper).cover;
      const RowInterval b = (kind / 2 == 0 ? second.lower : second.upper).cover;
      const int32_t begin = Clip(max(a.begin, b.begin), seqlen_q);
      const int32_t end = Clip(min(a.end, b.end), seqlen_q);
      begin_ = (begin + kRows - 1) / kRows;
      end_ = end == seqlen_q ? num_steps : end / kRows;
    } else {
      const TileRange& range = (kind - kCoverLanes) / 2 == 0 ? first : second;
      const RowInterval touch = (kind % 2 == 0 ? range.lower : range.upper).touch;
      begin_ = Clip(touch.begin, seqlen_q) / kRows;
      end_ = (Clip(touch.end, seqlen_q) + kRows - 1) / kRows;
    }
    if (descending) {
      const int32_t begin = begin_;
      begin_ = num_steps - end_;
      end_ = num_steps - begin;
    }
    const int32_t shift = (lane < kLanes ? 0 : num_steps) - first_step;
    begin_ += shift;
    end_ += shift;
    is_cover_ = kind < kCoverLanes;
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

// Of a step's rows, a thread holds rows 8 j + 2 (lane % 4) + {0, 1} of its keys, for j = 0, 1, ...:
// how many of them are before `row`.
template <int kRows>
__device__ __forceinline__ int32_t OwnRowsBefore(int32_t row, int32_t pair) {
  const int32_t clipped = min(max(row, 0), kRows);
  return clipped / 8 * 2 + min(max(clipped % 8 - pair, 0), 2);
}

// Bits [begin, end); none if begin >= end.
__device__ __forceinline__ uint32_t BitRun(int32_t begin, int32_t end) {
  return ptx::BitMask(begin, max(end - begin, 0));
}

// Bit i is set if the thread's row i of the step (2 j + {0, 1} as above) is masked for a key;
// `bounds` is lower begin, lower end, upper begin, upper end and `pair` 2 (lane % 4).
template <int kRows>
__device__ __forceinline__ uint32_t MaskedRows(int4 bounds, int32_t row_begin, int32_t pair) {
  const int32_t lower_begin = OwnRowsBefore<kRows>(bounds.x - row_begin, pair);
  const int32_t lower_end = OwnRowsBefore<kRows>(bounds.y - row_begin, pair);
  const int32_t upper_begin = OwnRowsBefore<kRows>(bounds.z - row_begin, pair);
  const int32_t upper_end = OwnRowsBefore<kRows>(bounds.w - row_begin, pair);
  return BitRun(lower_begin, lower_end) | BitRun(upper_begin, upper_end);
}

// Bits 2 j and 2 j + 1 of `bits`, each spread over 16: shifted to the top of their byte, they are
// its sign, which the permutation repeats.
__device__ __forceinline__ uint32_t SpreadPair(uint32_t bits, int j) {
  const uint32_t byte = static_cast<uint32_t>(j) / 4;
  const int shift = 7 - 2 * j % 8;
  constexpr uint32_t kSign = 8;    // added to the number of a byte: its sign in all 8 bits
  constexpr uint32_t kSecond = 4;  // added to the number of a byte of the second operand
  const uint32_t low = (kSign + byte) * 0x11;
  const uint32_t high = (kSign + kSecond + byte) * 0x1100;
  return ptx::PermuteBytes(bits << shift, bits << (shift - 1), low + high);
}

}  // namespace flashmask::sm90a
