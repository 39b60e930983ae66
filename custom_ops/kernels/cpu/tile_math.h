#pragma once

// The arithmetic of a tile, compiled once per instruction set from tile_math_impl.h.
//
// Operands of products are laid out in *units* of 4 bytes along the depth, the axis summed over:
// one float, or where the machine multiplies bfloat16 natively a pair of them. Three layouts:
//   rows        [rows, depth units]        left operand: a unit holds neighbours of one row
//   columns     [depth units, width]       right operand, from a tensor whose rows are the width
//   depth rows  [depth units, width]       right operand, from a tensor whose rows are the depth

#include "core/params.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/tile_config.h"

#include <cstdint>

namespace flashmask::cpu {

// c (+)= a b; c in float, row-major. `a` may be transposed by its strides (in units). rows is
// rounded up to kRowStep and width must be a multiple of kColumnStep: buffers must have room, and
// what stands in the padding is computed too.
struct Product {
  int64_t rows;
  int64_t width;
  int64_t depth_units;
  const float* a;
  int64_t a_row_stride;
  int64_t a_depth_stride;
  const float* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
  bool accumulate;
};

// Some rows of a tensor and a tile to hold them. `stride` is the row stride of the tile in units;
// what lies between the tensor's data and the tile's end is zeroed.
struct TileLoad {
  DataType dtype;
  const void* source;
  int64_t source_row_stride;  // in elements
  int64_t rows;
  int64_t head_dim;
  float* tile;
  int64_t stride;
};

// Running state of the online softmax of one row tile.
struct OnlineSoftmax {
  float* scores;   // [kTileRows, kTileColumns], float: scaled and masked in place
  float* weights;  // rows layout of exp(score - row_max); may be `scores` if units are floats
  float* out;      // [kTileRows, out_stride], rescaled when row_max grows
  int64_t out_stride;
  float* row_max;   // [kTileRows], -inf at first
  float* row_sum;   // [kTileRows], 0 at first
  float* row_seen;  // [kTileRows], 0 at first, 1 if only scores of -inf were seen
  ColumnSpan span;  // columns of the tile to work on
};

// Scores to weights and their gradients, for one tile of the backward.
struct SoftmaxBackward {
  const float* scores;            // [kTileRows, kTileColumns], float: q k^T
  const float* grad_weights;      // [kTileRows, kTileColumns], float: grad_out v^T
  const float* softmax_lse;       // [kTileRows]
  const float* delta;             // [kTileRows]: out . grad_out, less the gradient of lse
  float* weights_transposed;      // units along rows: a(column, row unit), strides 1 and 64
  float* grad_scores;             // rows layout of d(q k^T)
  float* grad_scores_transposed;  // units along rows, as weights_transposed
  ColumnSpan span;                // columns of the tile to work on
};

struct TileMath {
  int64_t depth_per_unit;  // 1: float; 2: pairs of bfloat16
  void (*multiply)(const Product&);
  // `columns` null: no cell is masked.
  void (*online_softmax)(const OnlineSoftmax&,
                         int64_t rows,
                         float scale,
                         const TileColumns* columns,
                         int64_t row_begin);
  void (*softmax_backward)(const SoftmaxBackward&,
                           int64_t rows,
                           float scale,
                           const TileColumns* columns,
                           int64_t row_begin);
  void (*load_rows)(const TileLoad&);        // pads to kTileRows rows
  void (*load_columns)(const TileLoad&);     // pads to kTileColumns columns
  void (*load_depth_rows)(const TileLoad&);  // pads to kTileRows rows of depth
  void (*load_float_rows)(const TileLoad&);  // [kTileRows, stride] in float, pads likewise
  // tile[r] * row_scale[r] to a tensor, from float; row_scale null: 1.
  void (*store)(DataType dtype,
                const float* tile,
                int64_t stride,
                const float* row_scale,
                int64_t rows,
                int64_t head_dim,
                void* destination,
                int64_t row_stride);
};

// The arithmetic for a dtype under the instruction set that core/diagnostics.h names active.
const TileMath& ActiveTileMath(DataType dtype);

}  // namespace flashmask::cpu
