#pragma once

// What both directions pass to their kernels: pointers to device memory, strides in elements.

#include "core/params.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/scale.h"

#include <cstdint>

namespace flashmask::sm80 {

struct AttentionArguments {
  TensorView query;
  TensorView key;
  TensorView value;
  int32_t seqlen_q;
  int32_t seqlen_k;
  int32_t head_dim;
  int32_t num_heads;
  int32_t num_heads_k;
  int32_t heads_per_key;   // query heads of a key head
  int32_t heads_per_mask;  // query heads of a mask head
  int32_t num_heads_mask;
  float scale_log2;  // |softmax_scale| * log2(e), at least kSmallestScale
  bool negate;       // softmax_scale is negative
  MaskPlanView plan;
};

// `Params` is ForwardParams or BackwardParams.
template <typename Params>
AttentionArguments CommonArguments(const Params& params, const MaskPlanView& plan) {
  const AttentionSizes& sizes = params.sizes;
  AttentionArguments args;
  args.query = params.query;
  args.key = params.key;
  args.value = params.value;
  args.seqlen_q = static_cast<int32_t>(sizes.seqlen_q);
  args.seqlen_k = static_cast<int32_t>(sizes.seqlen_k);
  args.head_dim = static_cast<int32_t>(sizes.head_dim);
  args.num_heads = static_cast<int32_t>(sizes.num_heads);
  args.num_heads_k = static_cast<int32_t>(sizes.num_heads_k);
  args.heads_per_key = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_k);
  args.heads_per_mask = static_cast<int32_t>(sizes.num_heads / sizes.num_heads_mask);
  args.num_heads_mask = static_cast<int32_t>(sizes.num_heads_mask);
  args.scale_log2 = ScaleLog2(params.softmax_scale);
  args.negate = params.softmax_scale < 0.0f;
  args.plan = plan;
  return args;
}

}  // namespace flashmask::sm80
