// Gradients of blocked attention, on the CPU, without atomics.
//
// Weights are recomputed from the saved logarithm of the row sum. Two passes walk the live tiles:
// one key tile of one key head at a time gathers its grad_key and grad_value over the rows of all
// query heads of the group; one row tile of one query head at a time gathers its grad_query over
// the keys. Either pass sums in a fixed order, so results do not depend on the number of threads.
// The price is two products more than the five needed (scores and grad_out v^T are formed twice).
// Source: FlashAttention-2, arXiv 2307.08691, algorithm 2.

#include "kernels/cpu/backward.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "core/diagnostics.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tensor_rows.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/workspace.h"

namespace flashmask::cpu {
namespace {

// The tiles of one worker. Row tiles belong to a query head, column tiles to a key head.
struct Tiles {
  float* query;             // [kTileRows, stride]
  float* grad_out;          // [kTileRows, stride]
  float* key;               // [kTileColumns, stride]
  float* key_transposed;    // [head_dim, kTileColumns]
  float* value_transposed;  // [head_dim, kTileColumns]
  float* scores;            // [kTileRows, kTileColumns]: scores, then weights
  float* grad_scores;       // [kTileRows, kTileColumns]
  float* first_sum;         // [64, stride]: grad_query or grad_key
  float* second_sum;        // [64, stride]: grad_value
  TileCounts counts;

  static int64_t NumFloats(int64_t stride) {
    return 3 * kTileRows * stride + 4 * kTileColumns * stride + 2 * kTileRows * kTileColumns;
  }

  Tiles(Workspace* workspace, int64_t stride)
      : query(workspace->Take(kTileRows * stride)),
        grad_out(workspace->Take(kTileRows * stride)),
        key(workspace->Take(kTileColumns * stride)),
        key_transposed(workspace->Take(stride * kTileColumns)),
        value_transposed(workspace->Take(stride * kTileColumns)),
        scores(workspace->Take(kTileRows * kTileColumns)),
        grad_scores(workspace->Take(kTileRows * kTileColumns)),
        first_sum(workspace->Take(kTileRows * stride)),
        second_sum(workspace->Take(kTileColumns * stride)) {}
};
static_assert(kTileRows == kTileColumns, "first_sum serves row tiles and column tiles");

class BackwardPass {
 public:
  explicit BackwardPass(const BackwardParams& params)
      : params_(params),
        sizes_(params.sizes),
        math_(ActiveTileMath()),
        plan_(params.sizes, params.mask, params.num_threads),
        stride_(RoundUp(params.sizes.head_dim, kColumnStep)),
        group_(params.sizes.num_heads / params.sizes.num_heads_k),
        num_row_tiles_(NumTiles(params.sizes.seqlen_q, kTileRows)),
        delta_(new float[static_cast<size_t>(params.sizes.batch * params.sizes.num_heads *
                                             params.sizes.seqlen_q)]) {}

  void Run() {
    const int64_t num_rows = sizes_.batch * sizes_.num_heads * num_row_tiles_;
    const int64_t num_columns = sizes_.batch * sizes_.num_heads_k * plan_.num_column_tiles();
    const int32_t num_workers = NumWorkers(std::max(num_rows, num_columns), params_.num_threads);
    std::vector<Workspace> workspaces = MakeWorkspaces(num_workers, Tiles::NumFloats(stride_));
    std::vector<Tiles> tiles;
    for (Workspace& workspace : workspaces) tiles.emplace_back(&workspace, stride_);
    const auto worker_tiles = [&](int32_t worker) { return &tiles[static_cast<size_t>(worker)]; };
    // The row pass forms delta, which the column pass needs.
    ParallelFor(num_rows, std::min(num_workers, NumWorkers(num_rows, num_workers)),
                [&](int32_t worker, int64_t item) {
                  const int64_t tile = num_row_tiles_ - 1 - item % num_row_tiles_;
                  const int64_t head = item / num_row_tiles_ % sizes_.num_heads;
                  const int64_t batch = item / num_row_tiles_ / sizes_.num_heads;
                  RunRowTile(batch, head, tile * kTileRows, worker_tiles(worker));
                });
    ParallelFor(num_columns, NumWorkers(num_columns, num_workers),
                [&](int32_t worker, int64_t item) {
                  const int64_t tile = item % plan_.num_column_tiles();
                  const int64_t head_k =
                      item / plan_.num_column_tiles() % sizes_.num_heads_k;
                  const int64_t batch =
                      item / plan_.num_column_tiles() / sizes_.num_heads_k;
                  RunColumnTile(batch, head_k, tile, worker_tiles(worker));
                });
    for (const Tiles& worker : tiles) BackwardTileCounter().Add(worker.counts);
  }

 private:
  int64_t RowIndex(int64_t batch, int64_t head, int64_t row) const {
    return (batch * sizes_.num_heads + head) * sizes_.seqlen_q + row;
  }

  void LoadRows(const TensorView& view, int64_t batch, int64_t head, int64_t row_begin,
                int64_t rows, float* tile) const {
    if (view.data == nullptr) {
      std::fill_n(tile, kTileRows * stride_, 0.0f);
      return;
    }
    math_.load(params_.dtype, RowPointer(view, params_.dtype, batch, row_begin, head),
               view.row_stride, rows, sizes_.head_dim, kTileRows, tile, stride_);
  }

  void LoadTransposed(const TensorView& view, int64_t batch, int64_t head_k, int64_t column_begin,
                      int64_t columns, float* tile) const {
    math_.load_transposed(params_.dtype,
                          RowPointer(view, params_.dtype, batch, column_begin, head_k),
                          view.row_stride, columns, sizes_.head_dim, tile);
  }

  void StoreRows(const float* tile, int64_t batch, int64_t head, int64_t row_begin, int64_t rows,
                 const TensorView& view) const {
    math_.store(params_.dtype, tile, stride_, nullptr, rows, sizes_.head_dim,
                RowPointer(view, params_.dtype, batch, row_begin, head), view.row_stride);
  }

  // delta = sum of out * grad_out, less the gradient of lse: d lse / d score is the weight.
  void ComputeDelta(int64_t batch, int64_t head, int64_t row_begin, int64_t rows,
                    Tiles* tiles) const {
    float* out = tiles->first_sum;
    LoadRows(params_.out, batch, head, row_begin, rows, out);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t index = RowIndex(batch, head, row_begin + r);
      double sum = 0.0;
      for (int64_t d = 0; d < sizes_.head_dim; ++d) {
        sum += static_cast<double>(out[r * stride_ + d]) * tiles->grad_out[r * stride_ + d];
      }
      if (params_.grad_softmax_lse != nullptr) sum -= params_.grad_softmax_lse[index];
      delta_[static_cast<size_t>(index)] = static_cast<float>(sum);
    }
  }

  // Weights and gradients of the scores of one tile whose operands are loaded.
  void ComputeScores(int64_t batch, int64_t head, int64_t row_begin, int64_t rows,
                     int64_t column_tile, bool partial, Tiles* tiles) const {
    math_.multiply({rows, kTileColumns, sizes_.head_dim, tiles->query, stride_, 1,
                    tiles->key_transposed, kTileColumns, tiles->scores, kTileColumns, false});
    math_.multiply({rows, kTileColumns, sizes_.head_dim, tiles->grad_out, stride_, 1,
                    tiles->value_transposed, kTileColumns, tiles->grad_scores, kTileColumns,
                    false});
    const int64_t index = RowIndex(batch, head, row_begin);
    math_.softmax_backward(
        {tiles->scores, tiles->grad_scores, params_.softmax_lse + index, delta_.get() + index},
        rows, params_.softmax_scale,
        partial ? &plan_.Columns(batch, head, column_tile) : nullptr, row_begin);
  }

  // Counts the tile and says whether it is live.
  static bool Count(TileClass tile_class, TileCounts* counts) {
    switch (tile_class) {
      case TileClass::kSkip:
        ++counts->skipped;
        return false;
      case TileClass::kPartial:
        ++counts->partial;
        return true;
      default:
        ++counts->full;
        return true;
    }
  }

  void RunRowTile(int64_t batch, int64_t head, int64_t row_begin, Tiles* tiles) const {
    const int64_t rows = std::min(kTileRows, sizes_.seqlen_q - row_begin);
    const int64_t head_k = head / group_;
    LoadRows(params_.query, batch, head, row_begin, rows, tiles->query);
    LoadRows(params_.grad_out, batch, head, row_begin, rows, tiles->grad_out);
    ComputeDelta(batch, head, row_begin, rows, tiles);
    std::fill_n(tiles->first_sum, kTileRows * stride_, 0.0f);
    for (int64_t tile = 0; tile < plan_.num_column_tiles(); ++tile) {
      const TileClass tile_class = plan_.Classify(batch, head, row_begin, row_begin + rows, tile);
      if (tile_class == TileClass::kSkip) continue;
      const int64_t column_begin = tile * kTileColumns;
      const int64_t columns = std::min(kTileColumns, sizes_.seqlen_k - column_begin);
      LoadRows(params_.key, batch, head_k, column_begin, columns, tiles->key);
      LoadTransposed(params_.key, batch, head_k, column_begin, columns, tiles->key_transposed);
      LoadTransposed(params_.value, batch, head_k, column_begin, columns,
                     tiles->value_transposed);
      ComputeScores(batch, head, row_begin, rows, tile, tile_class == TileClass::kPartial, tiles);
      math_.multiply({rows, stride_, kTileColumns, tiles->grad_scores, kTileColumns, 1,
                      tiles->key, stride_, tiles->first_sum, stride_, true});
    }
    StoreRows(tiles->first_sum, batch, head, row_begin, rows, params_.grad_query);
  }

  void RunColumnTile(int64_t batch, int64_t head_k, int64_t column_tile, Tiles* tiles) const {
    const int64_t column_begin = column_tile * kTileColumns;
    const int64_t columns = std::min(kTileColumns, sizes_.seqlen_k - column_begin);
    LoadTransposed(params_.key, batch, head_k, column_begin, columns, tiles->key_transposed);
    LoadTransposed(params_.value, batch, head_k, column_begin, columns, tiles->value_transposed);
    std::fill_n(tiles->first_sum, kTileColumns * stride_, 0.0f);
    std::fill_n(tiles->second_sum, kTileColumns * stride_, 0.0f);
    for (int64_t head = head_k * group_; head < (head_k + 1) * group_; ++head) {
      for (int64_t row_tile = 0; row_tile < num_row_tiles_; ++row_tile) {
        const int64_t row_begin = row_tile * kTileRows;
        const int64_t rows = std::min(kTileRows, sizes_.seqlen_q - row_begin);
        const TileClass tile_class =
            plan_.Classify(batch, head, row_begin, row_begin + rows, column_tile);
        if (!Count(tile_class, &tiles->counts)) continue;
        LoadRows(params_.query, batch, head, row_begin, rows, tiles->query);
        LoadRows(params_.grad_out, batch, head, row_begin, rows, tiles->grad_out);
        ComputeScores(batch, head, row_begin, rows, column_tile,
                      tile_class == TileClass::kPartial, tiles);
        // Transposed weights times rows: the depth is the number of real rows.
        math_.multiply({kTileColumns, stride_, rows, tiles->grad_scores, 1, kTileColumns,
                        tiles->query, stride_, tiles->first_sum, stride_, true});
        math_.multiply({kTileColumns, stride_, rows, tiles->scores, 1, kTileColumns,
                        tiles->grad_out, stride_, tiles->second_sum, stride_, true});
      }
    }
    StoreRows(tiles->first_sum, batch, head_k, column_begin, columns, params_.grad_key);
    StoreRows(tiles->second_sum, batch, head_k, column_begin, columns, params_.grad_value);
  }

  const BackwardParams& params_;
  const AttentionSizes& sizes_;
  const TileMath& math_;
  const MaskPlan plan_;
  const int64_t stride_;
  const int64_t group_;
  const int64_t num_row_tiles_;
  const std::unique_ptr<float[]> delta_;  // [B, Hq, Sq]
};

}  // namespace

Status Backward(const BackwardParams& params) {
  try {
    BackwardPass(params).Run();
  } catch (const std::bad_alloc&) {
    return Status::OutOfMemory("no memory for the workspace of the backward pass");
  }
  return Status::Ok();
}

}  // namespace flashmask::cpu
