// Blocked attention with an online softmax, on the CPU.
//
// A work item is one tile of 64 query rows of one head. It walks the key tiles from left to right,
// skips those that the mask makes dead, and keeps the running row maximum, row sum and weighted sum
// of values in float. Items are independent and each has a fixed order, so results do not depend on
// the number of threads. Source: FlashAttention-2, arXiv 2307.08691, algorithm 1.

#include "kernels/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "core/diagnostics.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tensor_rows.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/workspace.h"

namespace flashmask::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ForwardPass {
 public:
  explicit ForwardPass(const ForwardParams& params)
      : params_(params),
        sizes_(params.sizes),
        math_(ActiveTileMath()),
        plan_(params.sizes, params.mask, params.num_threads),
        stride_(RoundUp(params.sizes.head_dim, kColumnStep)),
        num_row_tiles_(NumTiles(params.sizes.seqlen_q, kTileRows)) {}

  void Run() {
    const int64_t num_items = sizes_.batch * sizes_.num_heads * num_row_tiles_;
    const int32_t num_workers = NumWorkers(num_items, params_.num_threads);
    const int64_t num_floats = 2 * kTileRows * stride_ + 2 * stride_ * kTileColumns +
                               kTileRows * kTileColumns + 2 * kTileRows;
    std::vector<Workspace> workspaces = MakeWorkspaces(num_workers, num_floats);
    std::vector<Tiles> tiles;
    for (Workspace& workspace : workspaces) tiles.push_back(TakeTiles(&workspace));
    ParallelFor(num_items, num_workers, [&](int32_t worker, int64_t item) {
      // Causal masks leave most work to the last rows: hand those out first.
      const int64_t row_tile = num_row_tiles_ - 1 - item % num_row_tiles_;
      const int64_t head = item / num_row_tiles_ % sizes_.num_heads;
      const int64_t batch = item / num_row_tiles_ / sizes_.num_heads;
      RunRowTile(batch, head, row_tile * kTileRows, &tiles[static_cast<size_t>(worker)]);
    });
    for (const Tiles& worker : tiles) ForwardTileCounter().Add(worker.counts);
  }

 private:
  struct Tiles {
    float* query;            // [kTileRows, stride_]
    float* key_transposed;   // [head_dim, kTileColumns]
    float* value;            // [kTileColumns, stride_]
    float* scores;           // [kTileRows, kTileColumns]
    float* out;              // [kTileRows, stride_]
    float* row_max;          // [kTileRows]
    float* row_sum;          // [kTileRows]
    TileCounts counts;
  };

  Tiles TakeTiles(Workspace* workspace) const {
    Tiles tiles;
    tiles.query = workspace->Take(kTileRows * stride_);
    tiles.key_transposed = workspace->Take(stride_ * kTileColumns);
    tiles.value = workspace->Take(kTileColumns * stride_);
    tiles.scores = workspace->Take(kTileRows * kTileColumns);
    tiles.out = workspace->Take(kTileRows * stride_);
    tiles.row_max = workspace->Take(kTileRows);
    tiles.row_sum = workspace->Take(kTileRows);
    return tiles;
  }

  void RunRowTile(int64_t batch, int64_t head, int64_t row_begin, Tiles* tiles) const {
    const int64_t rows = std::min(kTileRows, sizes_.seqlen_q - row_begin);
    const TensorView& query = params_.query;
    math_.load(params_.dtype, RowPointer(query, params_.dtype, batch, row_begin, head),
               query.row_stride, rows, sizes_.head_dim, RoundUp(rows, kRowStep), tiles->query,
               stride_);
    std::fill_n(tiles->out, kTileRows * stride_, 0.0f);
    std::fill_n(tiles->row_max, kTileRows, -kInfinity);
    std::fill_n(tiles->row_sum, kTileRows, 0.0f);
    for (int64_t tile = 0; tile < plan_.num_column_tiles(); ++tile) {
      const TileClass tile_class = plan_.Classify(batch, head, row_begin, row_begin + rows, tile);
      if (tile_class == TileClass::kSkip) {
        ++tiles->counts.skipped;
        continue;
      }
      const bool partial = tile_class == TileClass::kPartial;
      ++(partial ? tiles->counts.partial : tiles->counts.full);
      RunTile(batch, head, row_begin, rows, tile, partial, tiles);
    }
    StoreRows(batch, head, row_begin, rows, tiles);
  }

  void RunTile(int64_t batch, int64_t head, int64_t row_begin, int64_t rows, int64_t column_tile,
               bool partial, Tiles* tiles) const {
    const int64_t column_begin = column_tile * kTileColumns;
    const int64_t columns = std::min(kTileColumns, sizes_.seqlen_k - column_begin);
    const int64_t head_k = head / (sizes_.num_heads / sizes_.num_heads_k);
    const DataType dtype = params_.dtype;
    math_.load_transposed(dtype, RowPointer(params_.key, dtype, batch, column_begin, head_k),
                          params_.key.row_stride, columns, sizes_.head_dim,
                          tiles->key_transposed);
    math_.load(dtype, RowPointer(params_.value, dtype, batch, column_begin, head_k),
               params_.value.row_stride, columns, sizes_.head_dim, kTileColumns, tiles->value,
               stride_);
    math_.multiply({rows, kTileColumns, sizes_.head_dim, tiles->query, stride_, 1,
                    tiles->key_transposed, kTileColumns, tiles->scores, kTileColumns, false});
    math_.online_softmax(
        {tiles->scores, tiles->out, stride_, tiles->row_max, tiles->row_sum}, rows,
        params_.softmax_scale, partial ? &plan_.Columns(batch, head, column_tile) : nullptr,
        row_begin);
    math_.multiply({rows, stride_, kTileColumns, tiles->scores, kTileColumns, 1, tiles->value,
                    stride_, tiles->out, stride_, true});
  }

  // A row that saw nothing has sum 0 and maximum -inf: out 0, lse -inf.
  void StoreRows(int64_t batch, int64_t head, int64_t row_begin, int64_t rows,
                 Tiles* tiles) const {
    float* lse = params_.softmax_lse +
                 (batch * sizes_.num_heads + head) * sizes_.seqlen_q + row_begin;
    float* row_scale = tiles->row_sum;
    for (int64_t r = 0; r < rows; ++r) {
      const float sum = tiles->row_sum[r];
      lse[r] = sum == 0.0f ? -kInfinity : tiles->row_max[r] + std::log(sum);
      row_scale[r] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    const TensorView& out = params_.out;
    math_.store(params_.dtype, tiles->out, stride_, row_scale, rows, sizes_.head_dim,
                RowPointer(out, params_.dtype, batch, row_begin, head), out.row_stride);
  }

  const ForwardParams& params_;
  const AttentionSizes& sizes_;
  const TileMath& math_;
  const MaskPlan plan_;
  const int64_t stride_;
  const int64_t num_row_tiles_;
};

}  // namespace

Status Forward(const ForwardParams& params) {
  try {
    ForwardPass(params).Run();
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("no memory for the workspace of the forward pass");
  }
  return Status::Ok();
}

}  // namespace flashmask::cpu
