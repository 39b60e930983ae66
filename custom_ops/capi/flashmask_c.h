#pragma once

// The C door: the kernels without Paddle, for other frameworks and for benchmarks.
//
// A call is described by one struct. Sizes and strides are in elements, tensors are
// [batch, seqlen, heads, head_dim] with a contiguous last axis; every pointer is on `device`, and
// none is null unless that is said below or it has no elements. On a GPU tensors start at multiples
// of 16 bytes and strides are multiples of 8 elements. First ask for the workspace, allocate that
// many bytes of device memory (256-byte aligned), then run. Work is enqueued on `stream`; the host
// does not wait. Functions return null, or a message that lives until the next call from the same
// thread.

#include <cstdint>

#if defined(__GNUC__)
#define FLASHMASK_EXPORT __attribute__((visibility("default")))
#else
#define FLASHMASK_EXPORT
#endif

extern "C" {

enum flashmask_dtype { FLASHMASK_FLOAT32 = 0, FLASHMASK_FLOAT16 = 1, FLASHMASK_BFLOAT16 = 2 };

typedef struct {
  void* data;
  int64_t batch_stride;
  int64_t row_stride;
  int64_t head_stride;
} flashmask_tensor;

typedef struct {
  int64_t batch;
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t num_heads;
  int64_t num_heads_k;
  int64_t num_heads_mask;
  int64_t head_dim;
  int32_t dtype;   // flashmask_dtype
  int32_t device;  // CUDA ordinal; -1: the CPU
  float softmax_scale;
  int32_t causal;
  int32_t index_width;                  // 1, 2 or 4; 0 without indices
  int32_t deterministic;                // backward: the same bits in every run
  const int32_t* startend_row_indices;  // [batch, num_heads_mask, seqlen_k, index_width]
  int64_t window_left;                  // -1: no limit; not with indices
  int64_t window_right;
  flashmask_tensor query;
  flashmask_tensor key;
  flashmask_tensor value;
  flashmask_tensor out;
  float* softmax_lse;  // [batch, num_heads, seqlen_q], natural log
  // Backward only.
  flashmask_tensor grad_out;      // data null: zero
  const float* grad_softmax_lse;  // null: zero
  flashmask_tensor grad_query;
  flashmask_tensor grad_key;
  flashmask_tensor grad_value;
  // Where to run.
  void* stream;             // cudaStream_t
  void* workspace;          // device memory
  int64_t workspace_bytes;  // that it has
  int32_t num_threads;
} flashmask_call;

FLASHMASK_EXPORT const char* flashmask_forward_workspace(const flashmask_call* call,
                                                         int64_t* bytes);
FLASHMASK_EXPORT const char* flashmask_forward(const flashmask_call* call);
FLASHMASK_EXPORT const char* flashmask_backward_workspace(const flashmask_call* call,
                                                          int64_t* bytes);
FLASHMASK_EXPORT const char* flashmask_backward(const flashmask_call* call);

}  // extern "C"
