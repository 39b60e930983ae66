#pragma once

#include "core/params.h"
#include "ops/execution.h"
#include "ops/tensor_checks.h"

#include "paddle/extension.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace flashmask::ops {

inline DataType DataTypeOf(const paddle::Tensor& query,
                           const paddle::Tensor& key,
                           const paddle::Tensor& value) {
  Require(query.dtype() == key.dtype() && query.dtype() == value.dtype(),
          "query, key and value must have one dtype; got ",
          phi::DataTypeToString(query.dtype()),
          ", ",
          phi::DataTypeToString(key.dtype()),
          " and ",
          phi::DataTypeToString(value.dtype()));
  switch (query.dtype()) {
    case paddle::DataType::FLOAT32:
      return DataType::kFloat32;
    case paddle::DataType::FLOAT16:
      return DataType::kFloat16;
    case paddle::DataType::BFLOAT16:
      return DataType::kBFloat16;
    default:
      RequireOk(Status::InvalidArgument("query must be float32, float16 or bfloat16; got " +
                                        phi::DataTypeToString(query.dtype())));
      return DataType::kFloat32;
  }
}

// Operators get contiguous tensors.
inline TensorView ViewOf(const paddle::Tensor& tensor) {
  const std::vector<int64_t> shape = tensor.shape();
  TensorView view;
  view.data = const_cast<void*>(tensor.data());
  view.head_stride = shape[3];
  view.row_stride = shape[2] * view.head_stride;
  view.batch_stride = shape[1] * view.row_stride;
  return view;
}

inline AttentionSizes SizesOf(const paddle::Tensor& query, const paddle::Tensor& key) {
  AttentionSizes sizes;
  sizes.batch = query.shape()[0];
  sizes.seqlen_q = query.shape()[1];
  sizes.num_heads = query.shape()[2];
  sizes.head_dim = query.shape()[3];
  sizes.seqlen_k = key.shape()[1];
  sizes.num_heads_k = key.shape()[2];
  return sizes;
}

// Fills what forward and backward have in common: sizes, dtype, mask, inputs.
template <typename Params>
void FillInputs(const paddle::Tensor& query,
                const paddle::Tensor& key,
                const paddle::Tensor& value,
                const paddle::optional<paddle::Tensor>& indices,
                float softmax_scale,
                bool causal,
                int64_t window_left,
                int64_t window_right,
                bool has_indices,
                Params* params) {
  RequireGiven("query", query);
  RequireGiven("key", key);
  RequireGiven("value", value);
  RequireShapes(query.shape(), key.shape(), value.shape());
  if (indices) RequireGiven("startend_row_indices", *indices);
  const bool has_columns = key.shape()[0] > 0 && key.shape()[1] > 0;
  RequireColumns(!has_indices || indices || !has_columns,
                 query.shape(),
                 key.shape(),
                 "a tensor without elements");
  Require(has_indices || !indices, "has_indices must be true where startend_row_indices are given");
  NamedTensors tensors{{"query", &query}, {"key", &key}, {"value", &value}};
  if (indices) tensors.emplace_back("startend_row_indices", &*indices);
  RequireOnePlace(tensors);
  Require(window_left >= kNoWindow && window_right >= kNoWindow,
          "window widths must be -1 (no window) or not negative; got ",
          window_left,
          " and ",
          window_right);
  params->dtype = DataTypeOf(query, key, value);
  params->sizes = SizesOf(query, key);
  Require(std::isfinite(softmax_scale), "softmax_scale must be finite; got ", softmax_scale);
  params->softmax_scale = softmax_scale;
  params->mask.causal = causal;
  params->mask.window_left = std::min<int64_t>(window_left, INT32_MAX);
  params->mask.window_right = std::min<int64_t>(window_right, INT32_MAX);
  if (indices) {
    RequireIndices(*indices, query.shape(), key.shape(), causal);
    Require(window_left == kNoWindow && window_right == kNoWindow,
            "a window cannot be combined with startend_row_indices");
    params->sizes.num_heads_mask = indices->shape()[1];
    params->mask.startend_row_indices = indices->data<int32_t>();
    params->mask.width = static_cast<int32_t>(indices->shape()[3]);
  }
  params->query = ViewOf(query);
  params->key = ViewOf(key);
  params->value = ViewOf(value);
  params->execution = ExecutionOf(query);
}

}  // namespace flashmask::ops
