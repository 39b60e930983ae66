#pragma once

// The arithmetic of a tile, compiled once per instruction set from tile_math_impl.h.

#include <cstdint>

#include "core/params.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/tile_config.h"

namespace flashmask::cpu {

// c (+)= a b with b and c row-major. `a` is [rows, depth] with any strides, so that it may be
// transposed. rows is rounded up to kRowStep and width must be a multiple of kColumnStep: buffers
// must have room, and what stands in the padding is computed too.
struct Product {
  int64_t rows;
  int64_t width;
  int64_t depth;
  const float* a;
  int64_t a_row_stride;
  int64_t a_depth_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool accumulate;
};

// Running state of the online softmax of one row tile.
struct SoftmaxState {
  float* scores;  // [kTileRows, kTileColumns]: scores in, weights exp(score - row_max) out
  float* out;     // [kTileRows, out_stride], rescaled when row_max grows
  int64_t out_stride;
  float* row_max;  // [kTileRows], -inf at first
  float* row_sum;  // [kTileRows], 0 at first
};

// Scores to weights and their gradients, for one tile of the backward.
struct BackwardTile {
  float* scores;               // [kTileRows, kTileColumns]: q k^T in, weights p out
  float* grad_scores;          // [kTileRows, kTileColumns]: grad_out v^T in, d(q k^T) out
  const float* softmax_lse;    // [kTileRows]
  const float* delta;          // [kTileRows]: sum of out * grad_out, less the gradient of lse
};

struct TileMath {
  void (*multiply)(const Product&);
  // Scales the scores, masks them (columns null: nothing is masked) and updates the state.
  void (*online_softmax)(const SoftmaxState&, int64_t rows, float scale,
                         const TileColumns* columns, int64_t row_begin);
  void (*softmax_backward)(const BackwardTile&, int64_t rows, float scale,
                           const TileColumns* columns, int64_t row_begin);
  // A [rows, head_dim] tile of a tensor to float [rows_padded, stride], padding zeroed.
  void (*load)(DataType dtype, const void* source, int64_t row_stride, int64_t rows,
               int64_t head_dim, int64_t rows_padded, float* tile, int64_t stride);
  // The same transposed: float [head_dim, kTileColumns], columns past `rows` zeroed.
  void (*load_transposed)(DataType dtype, const void* source, int64_t row_stride, int64_t rows,
                          int64_t head_dim, float* tile);
  // tile[r] * row_scale[r] to a tensor; row_scale null: 1.
  void (*store)(DataType dtype, const float* tile, int64_t stride, const float* row_scale,
                int64_t rows, int64_t head_dim, void* destination, int64_t row_stride);
};

// The arithmetic for the instruction set that core/diagnostics.h names active.
const TileMath& ActiveTileMath();

}  // namespace flashmask::cpu
