#pragma once

#include "core/params.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/workspace.h"

#include <cstdint>
#include <functional>

namespace flashmask::cpu {

// A key or value tensor as right operands of products, one tile after the other, made once per call
// and read by all row tiles and all query heads of the group.
class PackedTensor {
 public:
  enum class Layout { kColumns, kDepthRows };

  // Whether a tile (batch, key head, column tile) is seen by any row; dead ones stay unwritten.
  using IsLive = std::function<bool(int64_t batch, int64_t head_k, int64_t column_tile)>;

  // Throws std::bad_alloc only.
  PackedTensor(const AttentionSizes& sizes,
               DataType dtype,
               const TensorView& view,
               const TileMath& math,
               Layout layout,
               const IsLive& is_live,
               int32_t num_threads);

  const float* Tile(int64_t batch, int64_t head_k, int64_t column_tile) const {
    return tiles_.data() + ((batch * num_heads_k_ + head_k) * num_tiles_ + column_tile) * size_;
  }

  int64_t stride() const { return stride_; }

 private:
  int64_t num_heads_k_;
  int64_t num_tiles_;
  int64_t stride_;  // units from one unit of depth to the next
  int64_t size_;    // units of one tile
  Workspace tiles_;
};

}  // namespace flashmask::cpu
