#include "kernels/cpu/packed_tensor.h"

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tensor_rows.h"
#include "kernels/cpu/tile_config.h"

#include <algorithm>

namespace flashmask::cpu {
namespace {

int64_t DepthUnits(PackedTensor::Layout layout, int64_t head_dim, int64_t depth_per_unit) {
  const int64_t depth = layout == PackedTensor::Layout::kColumns ? head_dim : kTileColumns;
  return depth / depth_per_unit;
}

}  // namespace

PackedTensor::PackedTensor(const AttentionSizes& sizes,
                           DataType dtype,
                           const TensorView& view,
                           const TileMath& math,
                           Layout layout,
                           const IsLive& is_live,
                           int32_t num_threads)
    : num_heads_k_(sizes.num_heads_k),
      num_tiles_(NumTiles(sizes.seqlen_k, kTileColumns)),
      stride_(layout == Layout::kColumns ? kTileColumns : RoundUp(sizes.head_dim, kColumnStep)),
      size_(stride_ * DepthUnits(layout, sizes.head_dim, math.depth_per_unit)),
      tiles_(sizes.batch * num_heads_k_ * num_tiles_ * size_) {
  const auto load = layout == Layout::kColumns ? math.load_columns : math.load_depth_rows;
  const int64_t num_items = sizes.batch * num_heads_k_ * num_tiles_;
  ParallelFor(num_items, NumWorkers(num_items, num_threads), [&](int32_t, int64_t item) {
    const int64_t tile = item % num_tiles_;
    const int64_t head_k = item / num_tiles_ % num_heads_k_;
    const int64_t batch = item / num_tiles_ / num_heads_k_;
    if (!is_live(batch, head_k, tile)) return;
    const int64_t begin = tile * kTileColumns;
    load({dtype,
          RowPointer(view, dtype, batch, begin, head_k),
          view.row_stride,
          std::min(kTileColumns, sizes.seqlen_k - begin),
          sizes.head_dim,
          tiles_.data() + item * size_,
          stride_});
  });
}

}  // namespace flashmask::cpu
