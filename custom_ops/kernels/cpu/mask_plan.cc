#include "kernels/cpu/mask_plan.h"

#include "core/diagnostics.h"
#include "kernels/cpu/parallel_for.h"

#include <algorithm>

namespace flashmask::cpu {
namespace {

// The range of the columns of two ranges together.
IntervalRange Join(const IntervalRange& a, const IntervalRange& b) {
  return {{MaxRow(a.cover.begin, b.cover.begin), MinRow(a.cover.end, b.cover.end)},
          {MinRow(a.touch.begin, b.touch.begin), MaxRow(a.touch.end, b.touch.end)}};
}

// `indices` points at the first column of the tile; null without indices.
void LowerTile(const AttentionSizes& sizes,
               const MaskParams& mask,
               const int32_t* indices,
               int64_t column_begin,
               TileColumns* columns,
               TileRanges* ranges) {
  for (TileRange& step : ranges->steps) step = {EmptyRange(), EmptyRange()};
  for (int64_t c = 0; c < kTileColumns; ++c) {
    const int64_t column = column_begin + c;
    TileRange* range = &ranges->steps[c / kColumnStep];
    ColumnBounds bounds{{0, static_cast<int32_t>(sizes.seqlen_q)}, {0, 0}};
    if (column < sizes.seqlen_k) {
      const int32_t* numbers = indices == nullptr ? nullptr : indices + c * mask.width;
      bounds = LowerColumn(mask, numbers, column, sizes.seqlen_q, sizes.seqlen_k);
      AddColumn(bounds.lower, &range->lower);
      AddColumn(bounds.upper, &range->upper);
    } else {
      // Masked everywhere: never a full tile, and no obstacle to skipping the others.
      range->lower.touch = {0, static_cast<int32_t>(sizes.seqlen_q)};
    }
    columns->lower_begin[c] = bounds.lower.begin;
    columns->lower_end[c] = bounds.lower.end;
    columns->upper_begin[c] = bounds.upper.begin;
    columns->upper_end[c] = bounds.upper.end;
  }
  ranges->whole = {EmptyRange(), EmptyRange()};
  for (const TileRange& step : ranges->steps) {
    ranges->whole = {Join(ranges->whole.lower, step.lower), Join(ranges->whole.upper, step.upper)};
  }
}

}  // namespace

MaskPlan::MaskPlan(const AttentionSizes& sizes, const MaskParams& mask, int32_t num_threads)
    : num_heads_mask_(sizes.num_heads_mask),
      heads_per_mask_(sizes.num_heads / sizes.num_heads_mask),
      num_column_tiles_(NumTiles(sizes.seqlen_k, kTileColumns)),
      skipping_(TileSkipping()) {
  const int64_t num_tiles = sizes.batch * sizes.num_heads_mask * num_column_tiles_;
  columns_.reset(new TileColumns[static_cast<size_t>(num_tiles)]);
  ranges_.reset(new TileRanges[static_cast<size_t>(num_tiles)]);
  constexpr int64_t kTilesPerItem = 64;  // enough work to be worth a hand-out
  const int64_t num_items = NumTiles(num_tiles, kTilesPerItem);
  const auto lower = [&](int32_t, int64_t item) {
    const int64_t end = std::min(num_tiles, (item + 1) * kTilesPerItem);
    for (int64_t tile = item * kTilesPerItem; tile < end; ++tile) {
      const int64_t sequence = tile / num_column_tiles_;
      const int64_t column_begin = tile % num_column_tiles_ * kTileColumns;
      const int32_t* indices = mask.startend_row_indices;
      if (indices != nullptr) indices += (sequence * sizes.seqlen_k + column_begin) * mask.width;
      LowerTile(sizes, mask, indices, column_begin, &columns_[tile], &ranges_[tile]);
    }
  };
  ParallelFor(num_items, NumWorkers(num_items, num_threads), lower);
}

}  // namespace flashmask::cpu
