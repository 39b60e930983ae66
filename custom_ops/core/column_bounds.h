#pragma once

// The mask rule: which rows a key column masks, and what that makes of a tile of rows by columns.
//
// Every mask form (causal or not, one, two or four numbers a column, a window, nothing at all) is
// lowered to two half-open intervals of masked rows per column, so kernels know one form only.
// The diagonal is aligned to the bottom right: row i may see column j only if
// j <= i + seqlen_k - seqlen_q.

#include "core/params.h"

#include <cstdint>

#if defined(__CUDACC__)
#define FLASHMASK_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHMASK_HOST_DEVICE inline
#endif

namespace flashmask {

// Rows [begin, end); empty if begin >= end.
struct RowInterval {
  int32_t begin;
  int32_t end;
};

// The masked rows of one column, clipped to [0, seqlen_q].
struct ColumnBounds {
  RowInterval lower;
  RowInterval upper;
};

// What one interval of all columns of a tile does to rows.
struct IntervalRange {
  RowInterval cover;  // rows masked by this interval in every column
  RowInterval touch;  // rows outside are masked by this interval in no column
};

struct TileRange {
  IntervalRange lower;
  IntervalRange upper;
};

enum class TileClass { kSkip, kPartial, kFull };

FLASHMASK_HOST_DEVICE int32_t ClipRow(int64_t row, int64_t seqlen_q) {
  return static_cast<int32_t>(row < 0 ? 0 : (row > seqlen_q ? seqlen_q : row));
}

FLASHMASK_HOST_DEVICE int32_t MaxRow(int32_t a, int32_t b) { return a > b ? a : b; }
FLASHMASK_HOST_DEVICE int32_t MinRow(int32_t a, int32_t b) { return a < b ? a : b; }

// `indices` points at the `mask.width` numbers of `column`, unused if width is 0.
FLASHMASK_HOST_DEVICE ColumnBounds LowerColumn(const MaskParams& mask,
                                               const int32_t* indices,
                                               int64_t column,
                                               int64_t seqlen_q,
                                               int64_t seqlen_k) {
  const int32_t last = static_cast<int32_t>(seqlen_q);
  const int64_t diagonal = column - (seqlen_k - seqlen_q);
  ColumnBounds bounds{{last, last}, {0, 0}};
  if (mask.width > 0) {
    bounds.lower.begin = ClipRow(indices[0], seqlen_q);
    if (mask.width == 4) {
      bounds.lower.end = ClipRow(indices[1], seqlen_q);
      bounds.upper.begin = ClipRow(indices[2], seqlen_q);
      bounds.upper.end = ClipRow(indices[3], seqlen_q);
    } else if (mask.width == 2) {
      (mask.causal ? bounds.lower.end : bounds.upper.end) = ClipRow(indices[1], seqlen_q);
    }
  } else {
    // A row sees columns [diagonal column - left, diagonal column + right].
    if (mask.window_left != kNoWindow) {
      bounds.lower.begin = ClipRow(diagonal + mask.window_left + 1, seqlen_q);
    }
    if (mask.window_right != kNoWindow) {
      bounds.upper.end = ClipRow(diagonal - mask.window_right, seqlen_q);
    }
  }
  if (mask.causal) {
    // Only width 4 has an upper interval that starts below row 0, and it is never causal.
    bounds.upper.end = MaxRow(bounds.upper.end, ClipRow(diagonal, seqlen_q));
  }
  return bounds;
}

FLASHMASK_HOST_DEVICE bool IsEmpty(RowInterval rows) { return rows.begin >= rows.end; }

FLASHMASK_HOST_DEVICE bool Contains(RowInterval rows, int32_t row) {
  return row >= rows.begin && row < rows.end;
}

FLASHMASK_HOST_DEVICE bool IsMasked(const ColumnBounds& bounds, int32_t row) {
  return Contains(bounds.lower, row) || Contains(bounds.upper, row);
}

// The range of no column at all: covers every row, touches none.
FLASHMASK_HOST_DEVICE IntervalRange EmptyRange() {
  return {{INT32_MIN, INT32_MAX}, {INT32_MAX, INT32_MIN}};
}

FLASHMASK_HOST_DEVICE void AddColumn(RowInterval rows, IntervalRange* range) {
  if (IsEmpty(rows)) {
    range->cover = {INT32_MAX, INT32_MIN};
    return;
  }
  range->cover.begin = MaxRow(range->cover.begin, rows.begin);
  range->cover.end = MinRow(range->cover.end, rows.end);
  range->touch.begin = MinRow(range->touch.begin, rows.begin);
  range->touch.end = MaxRow(range->touch.end, rows.end);
}

// Class of the tile of rows [row_begin, row_end) by the columns behind `range`. kSkip and kFull are
// exact promises; kPartial may still turn out to be all masked or all visible.
FLASHMASK_HOST_DEVICE TileClass ClassifyTile(const TileRange& range,
                                             int32_t row_begin,
                                             int32_t row_end) {
  const RowInterval lower = range.lower.cover;
  const RowInterval upper = range.upper.cover;
  if ((lower.begin <= row_begin && lower.end >= row_end) ||
      (upper.begin <= row_begin && upper.end >= row_end)) {
    return TileClass::kSkip;
  }
  const bool lower_misses =
      range.lower.touch.begin >= row_end || range.lower.touch.end <= row_begin;
  const bool upper_misses =
      range.upper.touch.begin >= row_end || range.upper.touch.end <= row_begin;
  return lower_misses && upper_misses ? TileClass::kFull : TileClass::kPartial;
}

}  // namespace flashmask
