#include "capi/flashmask_c.h"

#include "core/device_query.h"
#include "core/kernel_registry.h"
#include "core/params.h"
#include "core/status.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

namespace flashmask {
namespace {

TensorView ViewOf(const flashmask_tensor& tensor) {
  return {tensor.data, tensor.batch_stride, tensor.row_stride, tensor.head_stride};
}

std::string SizesText(const AttentionSizes& sizes) {
  return "batch " + std::to_string(sizes.batch) + ", lengths " + std::to_string(sizes.seqlen_q) +
         " and " + std::to_string(sizes.seqlen_k) + ", heads " + std::to_string(sizes.num_heads) +
         ", " + std::to_string(sizes.num_heads_k) + " and " + std::to_string(sizes.num_heads_mask);
}

Status CheckSizes(const AttentionSizes& sizes) {
  const bool positive = sizes.batch >= 0 && sizes.seqlen_q >= 0 && sizes.seqlen_k >= 0 &&
                        sizes.num_heads > 0 && sizes.num_heads_k > 0 && sizes.num_heads_mask > 0;
  if (!positive || std::max(sizes.seqlen_q, sizes.seqlen_k) > kMaxSeqlen) {
    return Status::InvalidArgument("batch and lengths must not be negative, lengths at most " +
                                   std::to_string(kMaxSeqlen) + ", heads at least 1; got " +
                                   SizesText(sizes));
  }
  if (sizes.num_heads > kMaxHeadsOfBatch / std::max<int64_t>(sizes.batch, 1)) {
    return Status::InvalidArgument("batch * num_heads must be at most " +
                                   std::to_string(kMaxHeadsOfBatch) + "; got " + SizesText(sizes));
  }
  if (sizes.num_heads % sizes.num_heads_k != 0) {
    return Status::InvalidArgument("num_heads must be a multiple of num_heads_k");
  }
  if (sizes.num_heads_mask != 1 && sizes.num_heads_mask != sizes.num_heads_k &&
      sizes.num_heads_mask != sizes.num_heads) {
    return Status::InvalidArgument("num_heads_mask must be 1, num_heads_k or num_heads");
  }
  return Status::Ok();
}

Status CheckMask(const MaskParams& mask, const AttentionSizes& sizes) {
  const bool has_indices = mask.width != 0;
  const bool has_columns = sizes.batch > 0 && sizes.seqlen_k > 0;  // else the pointer may be null
  const bool has_pointer = mask.startend_row_indices != nullptr;
  if (has_pointer != has_indices && (has_pointer || has_columns)) {
    return Status::InvalidArgument("startend_row_indices and index_width must come together");
  }
  const bool fits = mask.causal ? mask.width <= 2 : mask.width != 1;
  if (mask.width != 0 && (!fits || (mask.width != 1 && mask.width != 2 && mask.width != 4))) {
    return Status::InvalidArgument("index_width must be 1 or 2 with causal, 2 or 4 without; got " +
                                   std::to_string(mask.width));
  }
  if (has_indices && (mask.window_left != kNoWindow || mask.window_right != kNoWindow)) {
    return Status::InvalidArgument("a window cannot be combined with startend_row_indices");
  }
  if (mask.window_left < kNoWindow || mask.window_right < kNoWindow) {
    return Status::InvalidArgument("window widths must be -1 (none) or not negative");
  }
  return Status::Ok();
}

template <typename Params>
Status FillInputs(const flashmask_call& call, Params* params) {
  params->sizes = {call.batch,
                   call.seqlen_q,
                   call.seqlen_k,
                   call.num_heads,
                   call.num_heads_k,
                   call.num_heads_mask,
                   call.head_dim};
  if (call.dtype < FLASHMASK_FLOAT32 || call.dtype > FLASHMASK_BFLOAT16) {
    return Status::InvalidArgument("dtype must be a flashmask_dtype; got " +
                                   std::to_string(call.dtype));
  }
  params->dtype = static_cast<DataType>(call.dtype);
  if (!std::isfinite(call.softmax_scale)) {
    return Status::InvalidArgument("softmax_scale must be finite; got " +
                                   std::to_string(call.softmax_scale));
  }
  params->softmax_scale = call.softmax_scale;
  params->mask = {call.startend_row_indices,
                  call.index_width,
                  call.causal != 0,
                  std::min<int64_t>(call.window_left, INT32_MAX),  // sums of these stay in range
                  std::min<int64_t>(call.window_right, INT32_MAX)};
  params->query = ViewOf(call.query);
  params->key = ViewOf(call.key);
  params->value = ViewOf(call.value);
  params->out = ViewOf(call.out);
  params->softmax_lse = call.softmax_lse;
  params->execution.num_threads = call.num_threads;
  params->execution.device = call.device;
  params->execution.stream = call.stream;
  params->execution.workspace = call.workspace;
  params->execution.workspace_bytes =
      static_cast<size_t>(std::max<int64_t>(0, call.workspace_bytes));
  const Status sizes = CheckSizes(params->sizes);
  return sizes.ok() ? CheckMask(params->mask, params->sizes) : sizes;
}

Status FillBackward(const flashmask_call& call, BackwardParams* params) {
  params->grad_out = ViewOf(call.grad_out);
  params->grad_softmax_lse = call.grad_softmax_lse;
  params->grad_query = ViewOf(call.grad_query);
  params->grad_key = ViewOf(call.grad_key);
  params->grad_value = ViewOf(call.grad_value);
  params->deterministic = call.deterministic != 0;
  return FillInputs(call, params);
}

Status KernelFor(const flashmask_call& call,
                 Pass pass,
                 const AttentionSizes& sizes,
                 const Kernel** kernel) {
  Target target;
  if (call.device >= 0) {
    target.device = Device::kCuda;
    const Status status = ComputeCapability(call.device, &target.compute_capability);
    if (!status.ok()) return status;
  }
  return FindKernel(target, pass, static_cast<DataType>(call.dtype), sizes, kernel);
}

// Keeps the message of a failure for the thread that asked.
const char* Report(const Status& status) {
  thread_local std::string message;
  message = status.message();
  return status.ok() ? nullptr : message.c_str();
}

}  // namespace
}  // namespace flashmask

using flashmask::BackwardParams;
using flashmask::ForwardParams;
using flashmask::Kernel;
using flashmask::Report;
using flashmask::Status;

namespace {

template <typename Params, typename Fill, typename Use>
const char* WithKernel(const flashmask_call* call, Fill fill, Use use) {
  Params params;
  Status status = fill(*call, &params);
  const Kernel* kernel = nullptr;
  constexpr auto kPass = std::is_same_v<Params, ForwardParams> ? flashmask::Pass::kForward
                                                               : flashmask::Pass::kBackward;
  if (status.ok()) status = flashmask::KernelFor(*call, kPass, params.sizes, &kernel);
  if (status.ok()) status = use(*kernel, params);
  return Report(status);
}

}  // namespace

const char* flashmask_forward_workspace(const flashmask_call* call, int64_t* bytes) {
  return WithKernel<ForwardParams>(call,
                                   flashmask::FillInputs<ForwardParams>,
                                   [&](const Kernel& kernel, const ForwardParams& params) {
                                     *bytes = static_cast<int64_t>(WorkspaceBytes(kernel, params));
                                     return Status::Ok();
                                   });
}

const char* flashmask_forward(const flashmask_call* call) {
  return WithKernel<ForwardParams>(
      call,
      flashmask::FillInputs<ForwardParams>,
      [](const Kernel& kernel, const ForwardParams& params) { return Start(kernel, params); });
}

const char* flashmask_backward_workspace(const flashmask_call* call, int64_t* bytes) {
  return WithKernel<BackwardParams>(call,
                                    flashmask::FillBackward,
                                    [&](const Kernel& kernel, const BackwardParams& params) {
                                      *bytes = static_cast<int64_t>(WorkspaceBytes(kernel, params));
                                      return Status::Ok();
                                    });
}

const char* flashmask_backward(const flashmask_call* call) {
  return WithKernel<BackwardParams>(
      call,
      flashmask::FillBackward,
      [](const Kernel& kernel, const BackwardParams& params) { return Start(kernel, params); });
}
