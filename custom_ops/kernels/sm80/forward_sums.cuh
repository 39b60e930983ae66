#pragma once

// The running softmax of a warp's rows in the sm80 forward, and the output that it weighs.

#include "kernels/ptx/arithmetic.h"
#include "kernels/sm80/fragments.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

constexpr float kLowestMax = -1e30f;
// A row maximum may lag this far (in powers of 2) before sums are rescaled: weights stay exact
// enough and below what 16 bits hold.
constexpr float kRescaleThreshold = 8.0f;

template <typename Config>
struct ForwardSums {
  using Element = typename Config::Element;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kRowTiles = Config::kRowsPerWarp / 16;  // mma tiles of a warp's rows
  static constexpr int kRows = 2 * kRowTiles;                  // rows that a thread has a part of
  static constexpr int kScoreTiles = Config::kBlockColumns / 8;
  static constexpr int kOutTiles = kHeadDim / 8;
  using Scores = float[kRowTiles][kScoreTiles][4];

  float out_sum[kRowTiles][kOutTiles][4];
  float row_max[kRows];
  float row_sum[kRows];  // this thread's part

  __device__ __forceinline__ void Start() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row_max[r] = kLowestMax;
      row_sum[r] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d) Clear(out_sum[r][d]);
    }
  }

  // Turns scores of a tile into weights.
  __device__ __forceinline__ void Update(float scale_log2, Scores& scores) {
    float tile_max[kRows];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float largest = scores[r / 2][0][r % 2 * 2];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        largest = fmaxf(largest, scores[r / 2][n][r % 2 * 2]);
        largest = fmaxf(largest, scores[r / 2][n][r % 2 * 2 + 1]);
      }
      tile_max[r] = QuadMax(largest);
      rescale |= (tile_max[r] - row_max[r]) * scale_log2 > kRescaleThreshold;
    }
    if (__any_sync(0xffffffffu, rescale)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) RaiseMax(r, scale_log2, fmaxf(row_max[r], tile_max[r]));
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float offset = -row_max[r] * scale_log2;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[r / 2][n][r % 2 * 2 + e];
          score = ptx::Exp2(fmaf(score, scale_log2, offset));
          sum += score;
        }
      }
      row_sum[r] += sum;
    }
  }

  // `value` is RightColumnsAddress of the tile of values.
  __device__ __forceinline__ void AddWeighted(const Scores& weights, uint32_t value) {
#pragma unroll
    for (int k = 0; k < Config::kBlockColumns / 16; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        LeftFromSums<Element>(weights[r][2 * k], weights[r][2 * k + 1], a[r]);
      }
      AddDepth<Element, kHeadDim, WarpChunks<kHeadDim, 1>>(out_sum, a, value, k * 16);
    }
  }

 private:
  __device__ __forceinline__ void RaiseMax(int r, float scale_log2, float new_max) {
    const float factor = ptx::Exp2((row_max[r] - new_max) * scale_log2);
    row_max[r] = new_max;
    row_sum[r] *= factor;
#pragma unroll
    for (int d = 0; d < kOutTiles; ++d) {
      out_sum[r / 2][d][r % 2 * 2] *= factor;
      out_sum[r / 2][d][r % 2 * 2 + 1] *= factor;
    }
  }
};

}  // namespace flashmask::sm80
