#pragma once

// The last line of defence: Python has checked the arguments already, in plainer words. A static
// program or a direct call of the operator comes here unchecked.

#include "core/column_bounds.h"
#include "core/params.h"
#include "ops/op_errors.h"

#include "paddle/extension.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace flashmask::ops {

inline std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

constexpr const char* kGraphIsFreed =
    "After a backward its graph is freed: pass retain_graph=True to go through it again";

// A missing tensor is one that a caller left out, or that an earlier backward freed.
inline void RequireGiven(const char* name, const paddle::Tensor& tensor) {
  const bool has_data =
      tensor.defined() && tensor.is_dense_tensor() && (tensor.initialized() || tensor.numel() == 0);
  Require(has_data, name, " must be a dense tensor; got none. ", kGraphIsFreed);
}

inline void RequireRank4(const char* name, const std::vector<int64_t>& shape) {
  Require(shape.size() == 4,
          name,
          " must have 4 axes [batch, seqlen, heads, head_dim]; got shape ",
          ShapeText(shape));
}

inline void RequireShape(const char* name,
                         const std::vector<int64_t>& shape,
                         const std::vector<int64_t>& wanted) {
  Require(shape == wanted,
          name,
          " must have shape ",
          ShapeText(wanted),
          "; got ",
          ShapeText(shape));
}

// Shapes of query, key and value and of the indices, if any.
inline void RequireShapes(const std::vector<int64_t>& query,
                          const std::vector<int64_t>& key,
                          const std::vector<int64_t>& value) {
  RequireRank4("query", query);
  RequireRank4("key", key);
  RequireShape("value", value, key);
  RequireShape("key", key, {query[0], key[1], key[2], query[3]});
  Require(key[2] > 0 && query[2] > 0 && query[2] % key[2] == 0,
          "the heads of query must be a multiple of those of key; got ",
          query[2],
          " and ",
          key[2]);
  Require(query[1] <= kMaxSeqlen && key[1] <= kMaxSeqlen,
          "sequences must be at most ",
          kMaxSeqlen,
          " long; got ",
          query[1],
          " and ",
          key[1]);
  Require(query[2] <= kMaxHeadsOfBatch / std::max<int64_t>(query[0], 1),
          "batch times heads must be at most ",
          kMaxHeadsOfBatch,
          "; got query ",
          ShapeText(query));
}

inline void RequireColumns(bool are_there,
                           const std::vector<int64_t>& query,
                           const std::vector<int64_t>& key,
                           const std::string& came) {
  Require(are_there,
          "startend_row_indices must be [",
          query[0],
          ", 1|",
          key[2],
          "|",
          query[2],
          ", ",
          key[1],
          ", width]; got ",
          came);
}

inline void RequireIndices(const paddle::Tensor& indices,
                           const std::vector<int64_t>& query,
                           const std::vector<int64_t>& key,
                           bool causal) {
  const std::vector<int64_t> shape = indices.shape();
  Require(indices.dtype() == paddle::DataType::INT32,
          "startend_row_indices must be int32; got ",
          phi::DataTypeToString(indices.dtype()));
  RequireColumns(shape.size() == 4 && shape[0] == query[0] && shape[2] == key[1] &&
                     (shape[1] == 1 || shape[1] == key[2] || shape[1] == query[2]),
                 query,
                 key,
                 ShapeText(shape));
  Require(causal ? (shape[3] == 1 || shape[3] == 2) : (shape[3] == 2 || shape[3] == 4),
          "startend_row_indices must have width ",
          causal ? "1 or 2 with causal" : "2 or 4 without causal",
          "; got ",
          ShapeText(shape));
}

}  // namespace flashmask::ops
