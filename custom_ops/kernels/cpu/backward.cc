// Gradients of blocked attention, on the CPU, without atomics.
//
// Weights are recomputed from the saved logarithm of the row sum. There are two ways to walk the
// live tiles, and both form every sum in the same order, so results depend neither on the way nor
// on the number of threads.
//
// One pass: a work item is a key head. It takes one key tile after the other, gathers its grad_key
// and grad_value over the rows of all query heads of the group, and adds each tile's share of
// grad_query to a float buffer of the group's rows. Five products a tile.
//
// Two passes: a work item is a key tile (grad_key, grad_value) or a row tile (grad_query), so that
// few heads still feed many threads, and no buffer is needed. Seven products a tile.
//
// Source: FlashAttention-2, arXiv 2307.08691, algorithm 2.

#include "kernels/cpu/backward.h"

#include "core/diagnostics.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tensor_rows.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/workspace.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <vector>

namespace flashmask::cpu {
namespace {

constexpr int64_t kOnePassProducts = 5;
constexpr int64_t kTwoPassProducts = 7;
// Most that the grad_query buffers of all workers may take.
constexpr int64_t kMaxBufferBytes = int64_t{256} << 20;

// The tiles of one worker. Where units are floats, what differs in layout only shares its memory.
struct Tiles {
  float* query_rows;              // left operand
  float* query_depth;             // right operand, units along rows
  float* grad_out_rows;           // left operand
  float* grad_out_depth;          // right operand, units along rows
  float* key_columns;             // right operand of the scores
  float* key_depth;               // right operand of grad_query
  float* value_columns;           // right operand of the weights' gradient
  float* scores;                  // [kTileRows, kTileColumns], float
  float* grad_weights;            // [kTileRows, kTileColumns], float
  float* weights_transposed;      // left operand of grad_value
  float* grad_scores;             // left operand of grad_query
  float* grad_scores_transposed;  // left operand of grad_key
  float* first_sum;               // [64, stride], float: grad_query or grad_key
  float* second_sum;              // [64, stride], float: grad_value
  TileCounts counts;

  static int64_t NumFloats(int64_t stride) {
    return 9 * kTileRows * stride + 5 * kTileRows * kTileColumns;
  }

  Tiles(Workspace* workspace, int64_t stride, const TileMath& math) {
    const int64_t operand = kTileRows * stride;
    const int64_t cells = kTileRows * kTileColumns;
    const bool share = math.depth_per_unit == 1;
    query_rows = workspace->Take(operand);
    query_depth = share ? query_rows : workspace->Take(operand);
    grad_out_rows = workspace->Take(operand);
    grad_out_depth = share ? grad_out_rows : workspace->Take(operand);
    key_columns = workspace->Take(operand);
    key_depth = workspace->Take(operand);
    value_columns = workspace->Take(operand);
    scores = workspace->Take(cells);
    grad_weights = workspace->Take(cells);
    weights_transposed = share ? scores : workspace->Take(cells);
    grad_scores = share ? grad_weights : workspace->Take(cells);
    grad_scores_transposed = share ? grad_weights : workspace->Take(cells);
    first_sum = workspace->Take(operand);
    second_sum = workspace->Take(operand);
  }
};
static_assert(kTileRows == kTileColumns, "operands of row tiles and of key tiles are of one size");

// A part of one tile of the score matrix: rows [row_begin, row_begin + rows), of which the tile's
// first is row_begin - row_offset, and the columns of `span`.
struct TilePosition {
  int64_t batch;
  int64_t head;
  int64_t row_begin;
  int64_t rows;
  int64_t column_tile;
  bool partial;
  int64_t row_offset = 0;
  ColumnSpan span = kAllColumns;
};

class BackwardPass {
 public:
  explicit BackwardPass(const BackwardParams& params)
      : params_(params),
        sizes_(params.sizes),
        math_(ActiveTileMath(params.dtype)),
        plan_(params.sizes, params.mask, params.execution.num_threads),
        stride_(RoundUp(params.sizes.head_dim, kColumnStep)),
        group_(params.sizes.num_heads / params.sizes.num_heads_k),
        num_row_tiles_(NumTiles(params.sizes.seqlen_q, kTileRows)),
        delta_(new float[static_cast<size_t>(params.sizes.batch * params.sizes.num_heads *
                                             params.sizes.seqlen_q)]) {}

  void Run() {
    const int64_t num_rows = sizes_.batch * sizes_.num_heads * num_row_tiles_;
    const int64_t num_heads_k = sizes_.batch * sizes_.num_heads_k;
    const int64_t num_columns = num_heads_k * plan_.num_column_tiles();
    const int32_t num_workers =
        NumWorkers(std::max(num_rows, num_columns), params_.execution.num_threads);
    std::vector<Workspace> workspaces = MakeWorkspaces(num_workers, Tiles::NumFloats(stride_));
    std::vector<Tiles> tiles;
    tiles.reserve(workspaces.size());
    for (Workspace& workspace : workspaces) tiles.emplace_back(&workspace, stride_, math_);
    const auto worker_tiles = [&](int32_t worker) { return &tiles[static_cast<size_t>(worker)]; };
    ParallelFor(num_rows, NumWorkers(num_rows, num_workers), [&](int32_t worker, int64_t item) {
      ComputeDelta(item, worker_tiles(worker));
    });
    if (OnePassIsBetter(num_heads_k)) {
      const int32_t head_workers = NumWorkers(num_heads_k, num_workers);
      std::vector<Workspace> buffers = MakeWorkspaces(head_workers, BufferFloats());
      ParallelFor(num_heads_k, head_workers, [&](int32_t worker, int64_t item) {
        RunKeyHead(item, buffers[static_cast<size_t>(worker)].data(), worker_tiles(worker));
      });
    } else {
      ParallelFor(num_rows, NumWorkers(num_rows, num_workers), [&](int32_t worker, int64_t item) {
        // Causal masks leave most work to the last rows: hand those out first.
        RunRowTile(item / num_row_tiles_,
                   num_row_tiles_ - 1 - item % num_row_tiles_,
                   worker_tiles(worker));
      });
      ParallelFor(num_columns,
                  NumWorkers(num_columns, num_workers),
                  [&](int32_t worker, int64_t item) {
                    RunColumnTile(item / plan_.num_column_tiles(),
                                  item % plan_.num_column_tiles(),
                                  nullptr,
                                  worker_tiles(worker));
                  });
    }
    for (const Tiles& worker : tiles) BackwardTileCounter().Add(worker.counts);
  }

 private:
  // Floats of grad_query of one group, rows padded to whole tiles.
  int64_t BufferFloats() const { return group_ * num_row_tiles_ * kTileRows * stride_; }

  // Compares the products that the busiest thread does; heads are dealt out whole in one pass.
  bool OnePassIsBetter(int64_t num_heads_k) const {
    const int64_t threads = std::max<int64_t>(1, params_.execution.num_threads);
    const int64_t buffers = std::min(threads, num_heads_k);
    if (buffers * BufferFloats() * static_cast<int64_t>(sizeof(float)) > kMaxBufferBytes) {
      return false;
    }
    const int64_t rounds = NumTiles(num_heads_k, threads);
    return rounds * threads * kOnePassProducts <= num_heads_k * kTwoPassProducts;
  }

  int64_t RowIndex(int64_t batch, int64_t head, int64_t row) const {
    return (batch * sizes_.num_heads + head) * sizes_.seqlen_q + row;
  }

  TileLoad LoadOf(const TensorView& view,
                  int64_t batch,
                  int64_t head,
                  int64_t begin,
                  int64_t rows,
                  float* tile,
                  int64_t stride) const {
    return {params_.dtype,
            RowPointer(view, params_.dtype, batch, begin, head),
            view.row_stride,
            rows,
            sizes_.head_dim,
            tile,
            stride};
  }

  // A row tile as left operand, and as right operand if `depth` is another place.
  void LoadRowTile(const TensorView& view,
                   const TilePosition& at,
                   float* rows,
                   float* depth) const {
    if (view.data == nullptr) {
      std::fill_n(rows, kTileRows * stride_, 0.0f);
      std::fill_n(depth, kTileRows * stride_, 0.0f);
      return;
    }
    math_.load_rows(LoadOf(view, at.batch, at.head, at.row_begin, at.rows, rows, stride_));
    if (depth != rows) {
      math_.load_depth_rows(LoadOf(view, at.batch, at.head, at.row_begin, at.rows, depth, stride_));
    }
  }

  void LoadKeyTile(int64_t batch, int64_t head_k, int64_t column_tile, Tiles* tiles) const {
    const int64_t begin = column_tile * kTileColumns;
    const int64_t columns = NumColumns(column_tile);
    math_.load_columns(
        LoadOf(params_.key, batch, head_k, begin, columns, tiles->key_columns, kTileColumns));
    math_.load_columns(
        LoadOf(params_.value, batch, head_k, begin, columns, tiles->value_columns, kTileColumns));
    math_.load_depth_rows(
        LoadOf(params_.key, batch, head_k, begin, columns, tiles->key_depth, stride_));
  }

  int64_t NumColumns(int64_t column_tile) const {
    return std::min(kTileColumns, sizes_.seqlen_k - column_tile * kTileColumns);
  }

  int64_t NumRows(int64_t row_tile) const {
    return std::min(kTileRows, sizes_.seqlen_q - row_tile * kTileRows);
  }

  void Store(const float* tile,
             int64_t batch,
             int64_t head,
             int64_t begin,
             int64_t rows,
             const TensorView& view) const {
    math_.store(params_.dtype,
                tile,
                stride_,
                nullptr,
                rows,
                sizes_.head_dim,
                RowPointer(view, params_.dtype, batch, begin, head),
                view.row_stride);
  }

  // delta = out . grad_out, less the gradient of lse: d lse / d score is the weight.
  void ComputeDelta(int64_t item, Tiles* tiles) const {
    const int64_t row_tile = item % num_row_tiles_;
    const int64_t head = item / num_row_tiles_ % sizes_.num_heads;
    const int64_t batch = item / num_row_tiles_ / sizes_.num_heads;
    const int64_t row_begin = row_tile * kTileRows;
    const int64_t rows = NumRows(row_tile);
    const bool has_grad_out = params_.grad_out.data != nullptr;
    float* out = tiles->first_sum;
    float* grad_out = tiles->second_sum;
    if (has_grad_out) {
      math_.load_float_rows(LoadOf(params_.out, batch, head, row_begin, rows, out, stride_));
      math_.load_float_rows(
          LoadOf(params_.grad_out, batch, head, row_begin, rows, grad_out, stride_));
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t index = RowIndex(batch, head, row_begin + r);
      double sum = 0.0;
      for (int64_t d = 0; has_grad_out && d < sizes_.head_dim; ++d) {
        sum += static_cast<double>(out[r * stride_ + d]) * grad_out[r * stride_ + d];
      }
      if (params_.grad_softmax_lse != nullptr) sum -= params_.grad_softmax_lse[index];
      delta_[static_cast<size_t>(index)] = static_cast<float>(sum);
    }
  }

  // Calls `run` for the tile, or for the live parts of a partial one.
  template <typename Run>
  void ForEachPart(const TilePosition& tile, const Run& run) const {
    if (!tile.partial) {
      run(tile);
      return;
    }
    for (int64_t first = 0; first < tile.rows; first += kPartRows) {
      TilePosition part = tile;
      part.row_offset = first;
      part.row_begin = tile.row_begin + first;
      part.rows = std::min(kPartRows, tile.rows - first);
      part.span = plan_.LiveColumns(tile.batch,
                                    tile.head,
                                    part.row_begin,
                                    part.row_begin + part.rows,
                                    tile.column_tile);
      if (part.span.size() > 0) run(part);
    }
  }

  // Weights of a part and the gradients of its scores, from loaded operands.
  void ComputeScores(const TilePosition& at, Tiles* tiles) const {
    const int64_t depth = math_.depth_per_unit;
    const int64_t depth_units = sizes_.head_dim / depth;
    const int64_t row_cells = at.row_offset * kTileColumns;
    const int64_t row_units = row_cells / depth;
    const int64_t operand = at.row_offset * stride_;
    const int64_t column = at.span.begin;
    math_.multiply({at.rows,
                    at.span.size(),
                    depth_units,
                    tiles->query_rows + operand,
                    stride_,
                    1,
                    tiles->key_columns + column,
                    kTileColumns,
                    tiles->scores + row_cells + column,
                    kTileColumns,
                    false});
    math_.multiply({at.rows,
                    at.span.size(),
                    depth_units,
                    tiles->grad_out_rows + operand,
                    stride_,
                    1,
                    tiles->value_columns + column,
                    kTileColumns,
                    tiles->grad_weights + row_cells + column,
                    kTileColumns,
                    false});
    const int64_t index = RowIndex(at.batch, at.head, at.row_begin);
    math_.softmax_backward({tiles->scores + row_cells,
                            tiles->grad_weights + row_cells,
                            params_.softmax_lse + index,
                            delta_.get() + index,
                            tiles->weights_transposed + row_units,
                            tiles->grad_scores + row_units,
                            tiles->grad_scores_transposed + row_units,
                            at.span},
                           at.rows,
                           params_.softmax_scale,
                           at.partial ? &plan_.Columns(at.batch, at.head, at.column_tile) : nullptr,
                           at.row_begin);
  }

  // The part's share of grad_query, added to the tile's [rows, stride_].
  void AddGradQuery(const TilePosition& at, float* grad_query, Tiles* tiles) const {
    const int64_t units = kTileColumns / math_.depth_per_unit;
    const int64_t first_unit = at.span.begin / math_.depth_per_unit;
    math_.multiply({at.rows,
                    stride_,
                    at.span.size() / math_.depth_per_unit,
                    tiles->grad_scores + at.row_offset * units + first_unit,
                    units,
                    1,
                    tiles->key_depth + first_unit * stride_,
                    stride_,
                    grad_query + at.row_offset * stride_,
                    stride_,
                    true});
  }

  // The part's share of grad_key (first_sum) and grad_value (second_sum).
  void AddGradKeyValue(const TilePosition& at, Tiles* tiles) const {
    const int64_t units = NumTiles(at.rows, math_.depth_per_unit);
    const int64_t first_unit = at.row_offset / math_.depth_per_unit;
    const int64_t cell = first_unit * kTileColumns + at.span.begin;
    const int64_t sum = at.span.begin * stride_;
    math_.multiply({at.span.size(),
                    stride_,
                    units,
                    tiles->grad_scores_transposed + cell,
                    1,
                    kTileColumns,
                    tiles->query_depth + first_unit * stride_,
                    stride_,
                    tiles->first_sum + sum,
                    stride_,
                    true});
    math_.multiply({at.span.size(),
                    stride_,
                    units,
                    tiles->weights_transposed + cell,
                    1,
                    kTileColumns,
                    tiles->grad_out_depth + first_unit * stride_,
                    stride_,
                    tiles->second_sum + sum,
                    stride_,
                    true});
  }

  void RunKeyHead(int64_t item, float* grad_query, Tiles* tiles) const {
    const int64_t batch = item / sizes_.num_heads_k;
    const int64_t first_head = item % sizes_.num_heads_k * group_;
    std::fill_n(grad_query, BufferFloats(), 0.0f);
    for (int64_t tile = 0; tile < plan_.num_column_tiles(); ++tile) {
      RunColumnTile(item, tile, grad_query, tiles);
    }
    for (int64_t g = 0; g < group_; ++g) {
      Store(grad_query + g * num_row_tiles_ * kTileRows * stride_,
            batch,
            first_head + g,
            0,
            sizes_.seqlen_q,
            params_.grad_query);
    }
  }

  // `key_head` counts over the batch too. `grad_query` null: left to the other pass.
  void RunColumnTile(int64_t key_head, int64_t column_tile, float* grad_query, Tiles* tiles) const {
    const int64_t batch = key_head / sizes_.num_heads_k;
    const int64_t head_k = key_head % sizes_.num_heads_k;
    LoadKeyTile(batch, head_k, column_tile, tiles);
    std::fill_n(tiles->first_sum, kTileColumns * stride_, 0.0f);
    std::fill_n(tiles->second_sum, kTileColumns * stride_, 0.0f);
    for (int64_t g = 0; g < group_; ++g) {
      for (int64_t row_tile = 0; row_tile < num_row_tiles_; ++row_tile) {
        TilePosition at{batch,
                        head_k * group_ + g,
                        row_tile * kTileRows,
                        NumRows(row_tile),
                        column_tile,
                        false};
        const TileClass tile_class =
            plan_.Classify(at.batch, at.head, at.row_begin, at.row_begin + at.rows, column_tile);
        tiles->counts.Count(tile_class);
        if (tile_class == TileClass::kSkip) continue;
        at.partial = tile_class == TileClass::kPartial;
        LoadRowTile(params_.query, at, tiles->query_rows, tiles->query_depth);
        LoadRowTile(params_.grad_out, at, tiles->grad_out_rows, tiles->grad_out_depth);
        float* grad_rows = grad_query == nullptr
                               ? nullptr
                               : grad_query + (g * num_row_tiles_ + row_tile) * kTileRows * stride_;
        ForEachPart(at, [&](const TilePosition& part) {
          ComputeScores(part, tiles);
          AddGradKeyValue(part, tiles);
          if (grad_rows != nullptr) AddGradQuery(part, grad_rows, tiles);
        });
      }
    }
    const int64_t begin = column_tile * kTileColumns;
    const int64_t columns = NumColumns(column_tile);
    Store(tiles->first_sum, batch, head_k, begin, columns, params_.grad_key);
    Store(tiles->second_sum, batch, head_k, begin, columns, params_.grad_value);
  }

  // `query_head` counts over the batch too.
  void RunRowTile(int64_t query_head, int64_t row_tile, Tiles* tiles) const {
    TilePosition at{query_head / sizes_.num_heads,
                    query_head % sizes_.num_heads,
                    row_tile * kTileRows,
                    NumRows(row_tile),
                    0,
                    false};
    LoadRowTile(params_.query, at, tiles->query_rows, tiles->query_depth);
    LoadRowTile(params_.grad_out, at, tiles->grad_out_rows, tiles->grad_out_depth);
    std::fill_n(tiles->first_sum, kTileRows * stride_, 0.0f);
    for (at.column_tile = 0; at.column_tile < plan_.num_column_tiles(); ++at.column_tile) {
      const TileClass tile_class =
          plan_.Classify(at.batch, at.head, at.row_begin, at.row_begin + at.rows, at.column_tile);
      if (tile_class == TileClass::kSkip) continue;
      at.partial = tile_class == TileClass::kPartial;
      LoadKeyTile(at.batch, at.head / group_, at.column_tile, tiles);
      ForEachPart(at, [&](const TilePosition& part) {
        ComputeScores(part, tiles);
        AddGradQuery(part, tiles->first_sum, tiles);
      });
    }
    Store(tiles->first_sum, at.batch, at.head, at.row_begin, at.rows, params_.grad_query);
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
