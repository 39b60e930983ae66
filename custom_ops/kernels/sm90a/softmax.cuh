#pragma once

// What a warpgroup does to the 64 x N scores in its registers: masks, the online softmax, and the
// way of 64 rows of output to memory. A thread holds rows FragmentRow() and 8 below it, of every 8
// columns the two from 2 * (lane % 4) on; see ptx/wgmma.h.

#include "kernels/common/device_math.cuh"
#include "kernels/common/scale.h"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/thread_index.h"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

constexpr float kLowestMax = -1e30f;
// A row maximum may lag this far (in powers of 2) before sums are rescaled: weights stay exact
// enough and below what 16 bits hold.
constexpr float kRescaleThreshold = 8.0f;
constexpr int kChains = 2;  // of a row's maximum and of its sum

__device__ __forceinline__ int FragmentRow() {
  const int thread = ptx::ThreadIndex();
  return thread % kWarpgroup / kWarp * 16 + thread % kWarp / 4;
}

// Whether a row is masked, where only the intervals of `kClass` touch the rows. Half lines: the
// lower interval reaches to the last row, the upper one starts at the first.
template <bool kHalfLines, GroupClass kClass>
__device__ __forceinline__ bool IsMaskedRow(const int4& column, int32_t row) {
  const bool lower = row >= column.x && (kHalfLines || row < column.y);
  const bool upper = row < column.w && (kHalfLines || row >= column.z);
  if constexpr (kClass == kLower) return lower;
  if constexpr (kClass == kUpper) return upper;
  return lower || upper;
}

template <bool kHalfLines, GroupClass kClass, int kCount>
__device__ __forceinline__ void MaskByClass(float (&scores)[kCount],
                                            const int4* bounds,
                                            int32_t row,
                                            float hidden) {
  const int4* mine = bounds + ptx::ThreadIndex() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int4 column = mine[8 * n + e];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& score = scores[4 * n + 2 * r + e];
        score = IsMaskedRow<kHalfLines, kClass>(column, row + 8 * r) ? hidden : score;
      }
    }
  }
}

// `row` is that of the thread's first scores; masked ones become `hidden`.
template <bool kHalfLines, int kCount>
__device__ __forceinline__ void MaskScores(float (&scores)[kCount],
                                           const int4* bounds,
                                           int32_t row,
                                           uint32_t row_class,
                                           float hidden = -INFINITY) {
  if (row_class == kLower) {
    MaskByClass<kHalfLines, kLower>(scores, bounds, row, hidden);
  } else if (row_class == kUpper) {
    MaskByClass<kHalfLines, kUpper>(scores, bounds, row, hidden);
  } else {
    MaskByClass<kHalfLines, kBoth>(scores, bounds, row, hidden);
  }
}

// The running maximum and sum of a thread's two rows.
struct OnlineSoftmax {
  float row_max[2];
  float row_sum[2];  // this thread's part until Sum
  float factor[2];   // of the last Raise

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_max[r] = kLowestMax;
      row_sum[r] = 0.0f;
    }
  }

  // Looks at the scores of a tile: what was summed before has to be rescaled by `factor`. Chains of
  // maxima and of sums are kept short and many, since each step waits for the one before.
  template <int kCount>
  __device__ __forceinline__ void Raise(const float (&scores)[kCount], float scale_log2) {
    float largest[2][kChains];
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float pair = fmaxf(scores[4 * n + 2 * r], scores[4 * n + 2 * r + 1]);
        float& chain = largest[r][n % kChains];
        chain = n < kChains ? pair : fmaxf(chain, pair);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(largest[r][0], largest[r][1]);
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const bool rises = (most - row_max[r]) * scale_log2 > kRescaleThreshold;
      const float new_max = rises ? most : row_max[r];
      factor[r] = ptx::Exp2((row_max[r] - new_max) * scale_log2);
      row_max[r] = new_max;
      row_sum[r] *= factor[r];
    }
  }

  // Turns kEnd - kBegin scores into weights, after Raise has seen them.
  template <int kBegin, int kEnd, int kCount>
  __device__ __forceinline__ void Weigh(float (&scores)[kCount], float scale_log2) {
    float sum[2][kChains];
#pragma unroll
    for (int n = kBegin / 4; n < kEnd / 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float offset = -row_max[r] * scale_log2;
        float& left = scores[4 * n + 2 * r];
        float& right = scores[4 * n + 2 * r + 1];
        left = ptx::Exp2(fmaf(left, scale_log2, offset));
        right = ptx::Exp2(fmaf(right, scale_log2, offset));
        float& chain = sum[r][n % kChains];
        chain = n - kBegin / 4 < kChains ? left + right : chain + (left + right);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) row_sum[r] += sum[r][0] + sum[r][1];
  }

  // Whether a maximum of the warp has risen, so that Rescale has to be called.
  __device__ __forceinline__ bool HasRisen() const {
    return __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f);
  }

  // False, since sums are never negative. Asking makes ptxas finish them here: put off until after
  // the next product they would keep all weights in registers, and spill.
  __device__ __forceinline__ bool SumsAreNegative() const {
    return __any_sync(0xffffffffu, row_sum[0] < 0.0f || row_sum[1] < 0.0f);
  }

  // Both questions at once.
  __device__ __forceinline__ bool HasRisenOnceSummed() const {
    const bool summed = row_sum[0] < 0.0f || row_sum[1] < 0.0f;
    return __any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f || summed);
  }

  template <int kOut>
  __device__ __forceinline__ void Rescale(float (&out)[kOut]) const {
#pragma unroll
    for (int d = 0; d < kOut / 4; ++d) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        out[4 * d + 2 * r] *= factor[r];
        out[4 * d + 2 * r + 1] *= factor[r];
      }
    }
  }

  // The sum of a whole row, of the same value in all lanes that share it.
  __device__ __forceinline__ float Sum(int r) const {
    float sum = row_sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  __device__ __forceinline__ float LogSum(int r, float sum, float scale_log2) const {
    return (row_max[r] * scale_log2 + log2f(sum)) * kLn2;
  }
};

// Value i of lane j of four goes to value j of lane i.
__device__ __forceinline__ void TransposeQuad(uint32_t (&values)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool odd = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t sent = odd ? values[i] : values[i + step];
      const uint32_t got = __shfl_xor_sync(0xffffffffu, sent, step);
      values[i] = odd ? got : values[i];
      values[i + step] = odd ? values[i + step] : got;
    }
  }
}

// Stores row `r` of a thread's two, times `factor`, the first `columns` elements. The four lanes
// that share a row exchange pairs, so that each stores 8 neighbouring elements at once.
template <typename Element, int kHeadDim>
__device__ __forceinline__ void StoreRow(const float (&out)[kHeadDim / 2],
                                         int r,
                                         float factor,
                                         Element* row,
                                         int32_t columns) {
  const int lane = ptx::ThreadIndex() % 4;
#pragma unroll
  for (int block = 0; block < kHeadDim / 32; ++block) {
    uint32_t pairs[4];  // of columns 32 * block + 8 * i + 2 * lane
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * (4 * block + i) + 2 * r;
      pairs[i] = Pack<Element>(out[at] * factor, out[at + 1] * factor);
    }
    TransposeQuad(pairs, lane);
    const int column = 32 * block + 8 * lane;
    if (column < columns) {
      *reinterpret_cast<uint4*>(row + column) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

}  // namespace flashmask::sm90a
