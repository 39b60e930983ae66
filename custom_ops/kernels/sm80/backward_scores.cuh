#pragma once

// Weights of a step of the sm80 backward and gradients of its scores; see backward.cuh.

#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/memory.h"
#include "kernels/sm80/backward_shared.cuh"
#include "kernels/sm80/fragments.cuh"
#include "kernels/sm80/shared_tile.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

// S = Q K^T and dP = dO V^T, P and dS of them; each warp has a part of the step's rows by the keys.
template <typename Config, bool kHalfLines, bool kDeterministic>
class BackwardScores {
 public:
  using Element = typename Config::Element;
  using Shared = BackwardShared<Config, kDeterministic>;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kRows = Config::kBlockRows;
  static constexpr int kKeys = Config::kBlockColumns;

  __device__ __forceinline__ BackwardScores(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared) {}

  // Of a step, whose rows of query and grad_out lie in shared memory, to BackwardShared's weights
  // and grad_scores; `between` is done after the first product.
  template <typename Between>
  __device__ __forceinline__ void Compute(int32_t step,
                                          const Element* query,
                                          const Element* grad_out,
                                          bool partial,
                                          Between between) {
    Scores scores;
    Scores grads;
    MultiplyByKeys(query, shared_->key, scores, [](int) {});
    between();
    // Hidden scores become what gives weight 0 with either sign of the scale.
    if (partial) MaskCells(step * kRows, args_.negate ? INFINITY : -INFINITY, scores);
    const float sign = args_.negate ? -args_.scale_log2 : args_.scale_log2;
    float lse[kScoreRowTiles][2];
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
      lse[r][0] = shared_->terms[0][CellRow(r, 0)];
      lse[r][1] = shared_->terms[0][CellRow(r, 1)];
    }
    constexpr int kTiles = kScoreRowTiles * kScoreColumnTiles;
    constexpr int kSteps = kHeadDim / 16;
    const auto first_of = [](int k) { return k * kTiles / kSteps; };  // tile that step k starts at
    const auto store = [&](int first, int end) {
#pragma unroll
      for (int tile = first; tile < end; ++tile) {
        StoreCell(scores, tile / kScoreColumnTiles, tile % kScoreColumnTiles, shared_->weights);
      }
    };
    // Exponentials go between the steps of the next product, and where it pays stores do as well.
    MultiplyByKeys(grad_out, shared_->value, grads, [&](int k) {
#pragma unroll
      for (int tile = first_of(k); tile < first_of(k + 1); ++tile) {
        const int r = tile / kScoreColumnTiles;
        const int n = tile % kScoreColumnTiles;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          scores[r][n][e] = ptx::Exp2(fmaf(scores[r][n][e], sign, -lse[r][e / 2]));
        }
      }
      if (Config::kStoresBeside && k > 0) store(first_of(k - 1), first_of(k));
    });
    store(Config::kStoresBeside ? first_of(kSteps - 1) : 0, kTiles);
    if (partial) ClearHiddenNaN(step * kRows, scores);
    GradOfScores(scores, grads);
    if (partial) ClearMasked(scores, grads);
    StoreCells(grads, shared_->grad_scores);
  }

 private:
  using Place = ThreadPlace<kHeadDim>;
  // mma tiles of a warp's part: 16 rows by 8 columns
  static constexpr int kScoreRowTiles = kRows / Config::kScoreWarpRows / 16;
  static constexpr int kScoreColumnTiles = kKeys / Config::kScoreWarpColumns / 8;
  using Scores = float[kScoreRowTiles][kScoreColumnTiles][4];

  // First row and column of a warp's part.
  static __device__ __forceinline__ int ScoreRow() {
    return Place::Warp() % Config::kScoreWarpRows * (kRows / Config::kScoreWarpRows);
  }
  static __device__ __forceinline__ int ScoreColumn() {
    return Place::Warp() / Config::kScoreWarpRows * (kKeys / Config::kScoreWarpColumns);
  }

  // A step's rows of `left` times the keys' rows of `right`; `beside(k)` is worked out between the
  // steps of the product.
  template <typename Beside>
  __device__ __forceinline__ void MultiplyByKeys(const Element* left,
                                                 const Element* right,
                                                 Scores& result,
                                                 Beside beside) {
    MultiplyRows<Element, kHeadDim>(
        LeftAddress<kHeadDim>(ptx::SharedAddress(left), ScoreRow(), Place::LaneHere()),
        RightRowsAddress<kHeadDim>(ptx::SharedAddress(right), Place::LaneHere(), ScoreColumn()),
        result,
        beside);
  }

  // Row of a step that a thread holds in a half of the scores' row tile `r`.
  static __device__ __forceinline__ int CellRow(int r, int half) {
    return ScoreRow() + r * 16 + half * 8 + Place::Lane() / 4;
  }

  // From gradients of weights to those of scores.
  __device__ __forceinline__ void GradOfScores(const Scores& weights, Scores& grads) const {
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float delta = shared_->terms[1][CellRow(r, half)];
#pragma unroll
        for (int n = 0; n < kScoreColumnTiles; ++n) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            grads[r][n][e] = weights[r][n][e] * (grads[r][n][e] - delta);
          }
        }
      }
    }
  }

  // A masked cell must not pass on what its value made of the gradient, inf or NaN perhaps.
  static __device__ __forceinline__ void ClearMasked(const Scores& weights, Scores& grads) {
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kScoreColumnTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          grads[r][n][e] = weights[r][n][e] == 0.0f ? 0.0f : grads[r][n][e];
        }
      }
    }
  }

  // A row whose lse is NaN has made NaN of its hidden cells as well, which other rows' gradients of
  // keys and values must not see. Rare, so the weights are simply stored again.
  __device__ __forceinline__ void ClearHiddenNaN(int32_t row_begin, Scores& weights) {
    bool found = false;
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
      found |= isnan(shared_->terms[0][CellRow(r, 0)]) || isnan(shared_->terms[0][CellRow(r, 1)]);
    }
    if (!__any_sync(0xffffffffu, found)) return;
    MaskCells(row_begin, 0.0f, weights);
    StoreCells(weights, shared_->weights);
  }

  // Puts `hidden` into the cells that the mask hides.
  __device__ __forceinline__ void MaskCells(int32_t row_begin, float hidden, Scores& cells) const {
#pragma unroll
    for (int n = 0; n < kScoreColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int4 column = shared_->bounds[ScoreColumn() + n * 8 + Place::Lane() % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float& cell = cells[r][n][half * 2 + e];
            cell = IsMaskedRow<kHalfLines>(column, row_begin + CellRow(r, half)) ? hidden : cell;
          }
        }
      }
    }
  }

  // A warp's part of a [rows, keys] result to a shared tile of 16-bit cells.
  __device__ __forceinline__ void StoreCells(const Scores& cells, Element* tile) {
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kScoreColumnTiles; ++n) StoreCell(cells, r, n, tile);
    }
  }

  __device__ __forceinline__ void StoreCell(const Scores& cells, int r, int n, Element* tile) {
    const uint32_t base = ptx::SharedAddress(tile);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t at =
          TileOffset<kKeys>(CellRow(r, half), ScoreColumn() / 8 + n) + Place::Lane() % 4 * 4;
      ptx::StoreShared(base + at, Pack<Element>(cells[r][n][half * 2], cells[r][n][half * 2 + 1]));
    }
  }

  const BackwardArguments& args_;
  Shared* shared_;
};

}  // namespace flashmask::sm80
