#pragma once

#include "core/column_bounds.h"
#include "core/params.h"
#include "kernels/cpu/tile_config.h"

#include <cstdint>
#include <memory>

namespace flashmask::cpu {

// The bounds of the columns of one tile, one array a bound so that a vector holds several columns.
// Columns past the end of the sequence are masked in every row.
struct alignas(kCacheLine) TileColumns {
  int32_t lower_begin[kTileColumns];
  int32_t lower_end[kTileColumns];
  int32_t upper_begin[kTileColumns];
  int32_t upper_end[kTileColumns];
};

// What the columns of a tile do to rows: all of them, and each step of them.
struct TileRanges {
  static constexpr int64_t kSteps = kTileColumns / kColumnStep;
  TileRange whole;
  TileRange steps[kSteps];
};

// Columns [begin, end) of a tile.
struct ColumnSpan {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

constexpr ColumnSpan kAllColumns{0, kTileColumns};

// All masks of a call in the form the loops read: 16 bytes a key and mask head, once per call.
class MaskPlan {
 public:
  // Throws std::bad_alloc only.
  MaskPlan(const AttentionSizes& sizes, const MaskParams& mask, int32_t num_threads);

  const TileColumns& Columns(int64_t batch, int64_t head, int64_t column_tile) const {
    return columns_[Index(batch, head, column_tile)];
  }

  // Class of a tile of rows and columns for a query head.
  TileClass Classify(int64_t batch,
                     int64_t head,
                     int64_t row_begin,
                     int64_t row_end,
                     int64_t column_tile) const {
    const TileClass exact = ClassifyTile(ranges_[Index(batch, head, column_tile)].whole,
                                         static_cast<int32_t>(row_begin),
                                         static_cast<int32_t>(row_end));
    return skipping_ ? exact : TileClass::kPartial;
  }

  // The least span of whole steps that holds every column not masked for all of these rows.
  ColumnSpan LiveColumns(int64_t batch,
                         int64_t head,
                         int64_t row_begin,
                         int64_t row_end,
                         int64_t column_tile) const {
    if (!skipping_) return kAllColumns;
    const TileRanges& ranges = ranges_[Index(batch, head, column_tile)];
    const auto is_dead = [&](int64_t step) {
      return ClassifyTile(ranges.steps[step],
                          static_cast<int32_t>(row_begin),
                          static_cast<int32_t>(row_end)) == TileClass::kSkip;
    };
    int64_t first = 0;
    int64_t last = TileRanges::kSteps;
    while (first < last && is_dead(first)) ++first;
    while (last > first && is_dead(last - 1)) --last;
    return {first * kColumnStep, last * kColumnStep};
  }

  int64_t num_column_tiles() const { return num_column_tiles_; }

 private:
  int64_t Index(int64_t batch, int64_t head, int64_t column_tile) const {
    const int64_t mask_head = head / heads_per_mask_;
    return (batch * num_heads_mask_ + mask_head) * num_column_tiles_ + column_tile;
  }

  int64_t num_heads_mask_;
  int64_t heads_per_mask_;
  int64_t num_column_tiles_;
  bool skipping_;
  std::unique_ptr<TileColumns[]> columns_;
  std::unique_ptr<TileRanges[]> ranges_;
};

}  // namespace flashmask::cpu
