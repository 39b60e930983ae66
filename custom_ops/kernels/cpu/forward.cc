// Blocked attention with an online softmax, on the CPU.
//
// Keys and values are first laid out for the products, once for all row tiles. A work item is one
// tile of 64 query rows of one head. It walks the key tiles from left to right, skips those that
// the mask makes dead, and keeps the running row maximum, row sum and weighted sum of values in
// float. Items are independent and each has a fixed order, so results do not depend on the number
// of threads. Source: FlashAttention-2, arXiv 2307.08691, algorithm 1.

#include "kernels/cpu/forward.h"

#include "core/diagnostics.h"
#include "kernels/cpu/mask_plan.h"
#include "kernels/cpu/packed_tensor.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tensor_rows.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/workspace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <vector>

namespace flashmask::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The tiles of one worker.
struct Tiles {
  float* query;     // rows layout of a row tile
  float* scores;    // [kTileRows, kTileColumns]
  float* weights;   // rows layout of the weights
  float* out;       // [kTileRows, stride]
  float* row_max;   // [kTileRows]
  float* row_sum;   // [kTileRows]
  float* row_seen;  // [kTileRows]
  TileCounts counts;

  static int64_t NumFloats(int64_t stride) {
    return 2 * kTileRows * stride + 2 * kTileRows * kTileColumns + 3 * kTileRows;
  }

  Tiles(Workspace* workspace, int64_t stride, const TileMath& math)
      : query(workspace->Take(kTileRows * stride)),
        scores(workspace->Take(kTileRows * kTileColumns)),
        weights(math.depth_per_unit == 1 ? scores : workspace->Take(kTileRows * kTileColumns)),
        out(workspace->Take(kTileRows * stride)),
        row_max(workspace->Take(kTileRows)),
        row_sum(workspace->Take(kTileRows)),
        row_seen(workspace->Take(kTileRows)) {}
};

// Rows [begin, end) of a tile.
struct RowSpan {
  int64_t begin;
  int64_t end;
};

class ForwardPass {
 public:
  explicit ForwardPass(const ForwardParams& params)
      : params_(params),
        sizes_(params.sizes),
        math_(ActiveTileMath(params.dtype)),
        plan_(params.sizes, params.mask, params.execution.num_threads),
        stride_(RoundUp(params.sizes.head_dim, kColumnStep)),
        group_(params.sizes.num_heads / params.sizes.num_heads_k),
        num_row_tiles_(NumTiles(params.sizes.seqlen_q, kTileRows)),
        key_(Pack(params.key, PackedTensor::Layout::kColumns)),
        value_(Pack(params.value, PackedTensor::Layout::kDepthRows)) {}

  void Run() {
    const int64_t num_items = sizes_.batch * sizes_.num_heads * num_row_tiles_;
    const int32_t num_workers = NumWorkers(num_items, params_.execution.num_threads);
    std::vector<Workspace> workspaces = MakeWorkspaces(num_workers, Tiles::NumFloats(stride_));
    std::vector<Tiles> tiles;
    tiles.reserve(workspaces.size());
    for (Workspace& workspace : workspaces) tiles.emplace_back(&workspace, stride_, math_);
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
  PackedTensor Pack(const TensorView& view, PackedTensor::Layout layout) const {
    const auto is_live = [this](int64_t batch, int64_t head_k, int64_t column_tile) {
      for (int64_t head = head_k * group_; head < (head_k + 1) * group_; ++head) {
        if (plan_.Classify(batch, head, 0, sizes_.seqlen_q, column_tile) != TileClass::kSkip) {
          return true;
        }
      }
      return false;
    };
    return PackedTensor(sizes_,
                        params_.dtype,
                        view,
                        math_,
                        layout,
                        is_live,
                        params_.execution.num_threads);
  }

  void RunRowTile(int64_t batch, int64_t head, int64_t row_begin, Tiles* tiles) const {
    const int64_t rows = std::min(kTileRows, sizes_.seqlen_q - row_begin);
    const DataType dtype = params_.dtype;
    math_.load_rows({dtype,
                     RowPointer(params_.query, dtype, batch, row_begin, head),
                     params_.query.row_stride,
                     rows,
                     sizes_.head_dim,
                     tiles->query,
                     stride_});
    std::fill_n(tiles->out, kTileRows * stride_, 0.0f);
    std::fill_n(tiles->row_max, kTileRows, -kInfinity);
    std::fill_n(tiles->row_sum, kTileRows, 0.0f);
    std::fill_n(tiles->row_seen, kTileRows, 0.0f);
    for (int64_t tile = 0; tile < plan_.num_column_tiles(); ++tile) {
      const TileClass tile_class = plan_.Classify(batch, head, row_begin, row_begin + rows, tile);
      tiles->counts.Count(tile_class);
      if (tile_class == TileClass::kSkip) continue;
      const bool partial = tile_class == TileClass::kPartial;
      RunTile(batch, head, row_begin, rows, tile, partial, tiles);
    }
    StoreRows(batch, head, row_begin, rows, tiles);
  }

  void RunTile(int64_t batch,
               int64_t head,
               int64_t row_begin,
               int64_t rows,
               int64_t column_tile,
               bool partial,
               Tiles* tiles) const {
    if (!partial) {
      RunPart(batch, head, column_tile, nullptr, row_begin, {0, rows}, kAllColumns, tiles);
      return;
    }
    const TileColumns* columns = &plan_.Columns(batch, head, column_tile);
    for (int64_t first = 0; first < rows; first += kPartRows) {
      const RowSpan part{first, std::min(rows, first + kPartRows)};
      const ColumnSpan span =
          plan_.LiveColumns(batch, head, row_begin + part.begin, row_begin + part.end, column_tile);
      if (span.size() == 0) continue;
      RunPart(batch, head, column_tile, columns, row_begin, part, span, tiles);
    }
  }

  // `columns` null: nothing is masked.
  void RunPart(int64_t batch,
               int64_t head,
               int64_t column_tile,
               const TileColumns* columns,
               int64_t row_begin,
               RowSpan part,
               ColumnSpan span,
               Tiles* tiles) const {
    const int64_t head_k = head / group_;
    const int64_t depth = math_.depth_per_unit;
    const int64_t weight_units = kTileColumns / depth;
    const int64_t rows = part.end - part.begin;
    float* scores = tiles->scores + part.begin * kTileColumns;
    float* weights = tiles->weights + part.begin * weight_units;
    float* out = tiles->out + part.begin * stride_;
    math_.multiply({rows,
                    span.size(),
                    sizes_.head_dim / depth,
                    tiles->query + part.begin * stride_,
                    stride_,
                    1,
                    key_.Tile(batch, head_k, column_tile) + span.begin,
                    key_.stride(),
                    scores + span.begin,
                    kTileColumns,
                    false});
    math_.online_softmax({scores,
                          weights,
                          out,
                          stride_,
                          tiles->row_max + part.begin,
                          tiles->row_sum + part.begin,
                          tiles->row_seen + part.begin,
                          span},
                         rows,
                         params_.softmax_scale,
                         columns,
                         row_begin + part.begin);
    const int64_t first_unit = span.begin / depth;
    math_.multiply({rows,
                    stride_,
                    span.size() / depth,
                    weights + first_unit,
                    weight_units,
                    1,
                    value_.Tile(batch, head_k, column_tile) + first_unit * value_.stride(),
                    value_.stride(),
                    out,
                    stride_,
                    true});
  }

  // A row that saw nothing has sum 0 and maximum -inf: out 0, lse -inf. One that saw only scores of
  // -inf is 0 / 0, as in a dense softmax.
  void StoreRows(int64_t batch, int64_t head, int64_t row_begin, int64_t rows, Tiles* tiles) const {
    float* lse =
        params_.softmax_lse + (batch * sizes_.num_heads + head) * sizes_.seqlen_q + row_begin;
    float* row_scale = tiles->row_sum;
    for (int64_t r = 0; r < rows; ++r) {
      const float sum = tiles->row_sum[r];
      lse[r] = sum == 0.0f ? -kInfinity : tiles->row_max[r] + std::log(sum);
      const float nothing = tiles->row_seen[r] == 0.0f ? 0.0f : kNan;
      row_scale[r] = sum == 0.0f ? nothing : 1.0f / sum;
    }
    const TensorView& out = params_.out;
    math_.store(params_.dtype,
                tiles->out,
                stride_,
                row_scale,
                rows,
                sizes_.head_dim,
                RowPointer(out, params_.dtype, batch, row_begin, head),
                out.row_stride);
  }

  const ForwardParams& params_;
  const AttentionSizes& sizes_;
  const TileMath& math_;
  const MaskPlan plan_;
  const int64_t stride_;
  const int64_t group_;
  const int64_t num_row_tiles_;
  const PackedTensor key_;
  const PackedTensor value_;
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
