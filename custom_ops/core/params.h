#pragma once

#include <cstddef>
#include <cstdint>

namespace flashmask {

enum class DataType { kFloat32, kFloat16, kBFloat16 };

// A [batch, seqlen, heads, head_dim] tensor whose last axis is contiguous. Strides in elements.
struct TensorView {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

// Kernels count rows and columns in int32, up to a few blocks beyond the last.
constexpr int64_t kMaxSeqlen = (int64_t{1} << 31) - (1 << 13);
constexpr int64_t kMaxHeadsOfBatch = INT32_MAX;  // batch * num_heads

struct AttentionSizes {
  int64_t batch = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t num_heads = 0;
  int64_t num_heads_k = 0;     // divides num_heads
  int64_t num_heads_mask = 1;  // divides num_heads: 1, num_heads_k or num_heads
  int64_t head_dim = 0;
};

constexpr int64_t kNoWindow = -1;

// Which (row, column) pairs are masked; see column_bounds.h for the rule.
struct MaskParams {
  const int32_t* startend_row_indices = nullptr;  // [B, Hm, Sk, width], contiguous; null: none
  int32_t width = 0;                              // 1, 2 or 4; 0 without indices
  bool causal = false;
  int64_t window_left = kNoWindow;   // keys left of the diagonal that a row sees; not with indices
  int64_t window_right = kNoWindow;  // likewise to the right
};

// Where a call runs. The CPU uses num_threads, a GPU the rest.
struct Execution {
  int32_t num_threads = 1;
  int32_t device = 0;         // CUDA ordinal
  void* stream = nullptr;     // cudaStream_t of the caller
  void* workspace = nullptr;  // device memory, 256-byte aligned
  size_t workspace_bytes = 0;
};

struct ForwardParams {
  AttentionSizes sizes;
  DataType dtype = DataType::kFloat32;
  float softmax_scale = 1.0f;
  MaskParams mask;
  TensorView query;              // [B, Sq, Hq, D]
  TensorView key;                // [B, Sk, Hk, D]
  TensorView value;              // [B, Sk, Hk, D]
  TensorView out;                // [B, Sq, Hq, D]
  float* softmax_lse = nullptr;  // [B, Hq, Sq], contiguous, natural log, -inf if nothing is seen
  Execution execution;
};

struct BackwardParams {
  AttentionSizes sizes;
  DataType dtype = DataType::kFloat32;
  float softmax_scale = 1.0f;
  MaskParams mask;
  TensorView query;                         // [B, Sq, Hq, D]
  TensorView key;                           // [B, Sk, Hk, D]
  TensorView value;                         // [B, Sk, Hk, D]
  TensorView out;                           // [B, Sq, Hq, D]
  const float* softmax_lse = nullptr;       // [B, Hq, Sq]
  TensorView grad_out;                      // [B, Sq, Hq, D]; data null: zero
  const float* grad_softmax_lse = nullptr;  // [B, Hq, Sq]; null: zero
  TensorView grad_query;                    // [B, Sq, Hq, D]
  TensorView grad_key;                      // [B, Sk, Hk, D]
  TensorView grad_value;                    // [B, Sk, Hk, D]
  bool deterministic = false;               // GPU: the same bits in every run; the CPU always is
  Execution execution;
};

}  // namespace flashmask
