#pragma once

#include "core/params.h"

#include <cstdint>

namespace flashmask::cpu {

inline int64_t ElementSize(DataType dtype) { return dtype == DataType::kFloat32 ? 4 : 2; }

// Address of [batch, row, head, 0].
inline void* RowPointer(const TensorView& view,
                        DataType dtype,
                        int64_t batch,
                        int64_t row,
                        int64_t head) {
  const int64_t element =
      batch * view.batch_stride + row * view.row_stride + head * view.head_stride;
  return static_cast<char*>(view.data) + element * ElementSize(dtype);
}

}  // namespace flashmask::cpu
