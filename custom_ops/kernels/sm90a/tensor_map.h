#pragma once

// How the copy engine finds boxes of a tensor.

#include "core/params.h"
#include "core/status.h"
#include "kernels/sm90a/tile_config.h"

#include <cuda.h>

#include <cstdint>

namespace flashmask::sm90a {

// Fills `map` for a [batch, rows, heads, head_dim] tensor of 16-bit elements. A box is
// kSwizzleColumns columns of `box_rows` rows of one head, stored with the 128-byte swizzle; its
// coordinates are (column, head, row, batch), and outside of the tensor it is zero. `name` is for
// the message.
Status MakeTensorMap(const TensorView& view,
                     const char* name,
                     DataType dtype,
                     int64_t batch,
                     int64_t rows,
                     int64_t heads,
                     int64_t head_dim,
                     int box_rows,
                     CUtensorMap* map);

}  // namespace flashmask::sm90a
