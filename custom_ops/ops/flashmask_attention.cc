// The Paddle operator: registration, shape and dtype rules, entry of forward and backward.

#include "core/kernel_registry.h"
#include "core/params.h"
#include "ops/execution.h"
#include "ops/op_errors.h"
#include "ops/params_from_tensors.h"
#include "ops/tensor_checks.h"

#include "paddle/extension.h"

#include <cstdint>
#include <string>
#include <vector>

namespace flashmask::ops {
namespace {

using OptionalTensor = paddle::optional<paddle::Tensor>;
using Shape = std::vector<int64_t>;

// A gradient that nobody asked for comes undefined.
bool IsGiven(const paddle::Tensor& tensor) { return tensor.defined() && tensor.initialized(); }

const Kernel& KernelFor(const paddle::Tensor& query,
                        Pass pass,
                        DataType dtype,
                        const AttentionSizes& sizes) {
  const Kernel* kernel = nullptr;
  RequireOk(FindKernel(TargetOf(query), pass, dtype, sizes, &kernel));
  return *kernel;
}

std::vector<paddle::Tensor> Forward(const paddle::Tensor& query,
                                    const paddle::Tensor& key,
                                    const paddle::Tensor& value,
                                    const OptionalTensor& startend_row_indices,
                                    float softmax_scale,
                                    bool causal,
                                    int64_t window_left,
                                    int64_t window_right,
                                    bool has_indices) {
  ForwardParams params;
  FillInputs(query,
             key,
             value,
             startend_row_indices,
             softmax_scale,
             causal,
             window_left,
             window_right,
             has_indices,
             &params);
  const AttentionSizes& sizes = params.sizes;
  const Kernel& kernel = KernelFor(query, Pass::kForward, params.dtype, sizes);
  paddle::Tensor out = paddle::empty(query.shape(), query.dtype(), query.place());
  paddle::Tensor softmax_lse = paddle::empty({sizes.batch, sizes.num_heads, sizes.seqlen_q},
                                             paddle::DataType::FLOAT32,
                                             query.place());
  params.out = ViewOf(out);
  params.softmax_lse = softmax_lse.data<float>();
  const Workspace workspace(WorkspaceBytes(kernel, params), query, &params.execution);
  RequireOk(Start(kernel, params));
  return {out, softmax_lse};
}

std::vector<Shape> InferForwardShape(const Shape& query,
                                     const Shape& key,
                                     const Shape& value,
                                     const paddle::optional<Shape>& startend_row_indices,
                                     float softmax_scale,
                                     bool causal,
                                     int64_t window_left,
                                     int64_t window_right,
                                     bool has_indices) {
  (void)key, (void)value, (void)startend_row_indices, (void)softmax_scale, (void)causal;
  (void)window_left, (void)window_right, (void)has_indices;
  // An exception here would end the process: a wrong rank is left to the run to refuse.
  if (query.size() != 4) return {query, {-1, -1, -1}};
  return {query, {query[0], query[2], query[1]}};
}

std::vector<paddle::DataType> InferForwardDtype(
    const paddle::DataType& query,
    const paddle::DataType& key,
    const paddle::DataType& value,
    const paddle::optional<paddle::DataType>& startend_row_indices,
    float softmax_scale,
    bool causal,
    int64_t window_left,
    int64_t window_right,
    bool has_indices) {
  (void)key, (void)value, (void)startend_row_indices, (void)softmax_scale, (void)causal;
  (void)window_left, (void)window_right, (void)has_indices;
  return {query, paddle::DataType::FLOAT32};
}

std::vector<paddle::Tensor> Backward(const paddle::Tensor& query,
                                     const paddle::Tensor& key,
                                     const paddle::Tensor& value,
                                     const OptionalTensor& startend_row_indices,
                                     const paddle::Tensor& out,
                                     const paddle::Tensor& softmax_lse,
                                     const paddle::Tensor& grad_out,
                                     const paddle::Tensor& grad_softmax_lse,
                                     float softmax_scale,
                                     bool causal,
                                     int64_t window_left,
                                     int64_t window_right,
                                     bool has_indices) {
  // What Paddle hands over in place of freed inputs stands in the wrong places.
  Require(!startend_row_indices || startend_row_indices->dtype() == paddle::DataType::INT32,
          "startend_row_indices of the forward are gone. ",
          kGraphIsFreed);
  BackwardParams params;
  FillInputs(query,
             key,
             value,
             startend_row_indices,
             softmax_scale,
             causal,
             window_left,
             window_right,
             has_indices,
             &params);
  const Kernel& kernel = KernelFor(query, Pass::kBackward, params.dtype, params.sizes);
  const Shape lse_shape{params.sizes.batch, params.sizes.num_heads, params.sizes.seqlen_q};
  RequireGiven("out", out);
  RequireGiven("softmax_lse", softmax_lse);
  RequireShape("out", out.shape(), query.shape());
  RequireShape("softmax_lse", softmax_lse.shape(), lse_shape);
  RequireOnePlace({{"query", &query}, {"out", &out}, {"softmax_lse", &softmax_lse}});
  params.out = ViewOf(out);
  params.softmax_lse = softmax_lse.data<float>();
  if (IsGiven(grad_out)) {
    RequireOnePlace({{"query", &query}, {"the gradient of out", &grad_out}});
    RequireShape("the gradient of out", grad_out.shape(), query.shape());
    Require(grad_out.dtype() == query.dtype(),
            "the gradient of out must be ",
            phi::DataTypeToString(query.dtype()),
            "; got ",
            phi::DataTypeToString(grad_out.dtype()));
    params.grad_out = ViewOf(grad_out);
  }
  if (IsGiven(grad_softmax_lse)) {
    RequireOnePlace({{"query", &query}, {"the gradient of softmax_lse", &grad_softmax_lse}});
    RequireShape("the gradient of softmax_lse", grad_softmax_lse.shape(), lse_shape);
    params.grad_softmax_lse = grad_softmax_lse.data<float>();
  }
  paddle::Tensor grad_query = paddle::empty(query.shape(), query.dtype(), query.place());
  paddle::Tensor grad_key = paddle::empty(key.shape(), key.dtype(), key.place());
  paddle::Tensor grad_value = paddle::empty(value.shape(), value.dtype(), value.place());
  params.grad_query = ViewOf(grad_query);
  params.grad_key = ViewOf(grad_key);
  params.grad_value = ViewOf(grad_value);
  params.deterministic = WantsDeterminism();
  const Workspace workspace(WorkspaceBytes(kernel, params), query, &params.execution);
  RequireOk(Start(kernel, params));
  return {grad_query, grad_key, grad_value};
}

std::vector<Shape> InferBackwardShape(const Shape& query,
                                      const Shape& key,
                                      const Shape& value,
                                      const paddle::optional<Shape>& startend_row_indices,
                                      const Shape& out,
                                      const Shape& softmax_lse,
                                      const Shape& grad_out,
                                      const Shape& grad_softmax_lse,
                                      float softmax_scale,
                                      bool causal,
                                      int64_t window_left,
                                      int64_t window_right,
                                      bool has_indices) {
  (void)startend_row_indices, (void)out, (void)softmax_lse, (void)grad_out, (void)softmax_scale;
  (void)grad_softmax_lse, (void)causal, (void)window_left, (void)window_right, (void)has_indices;
  return {query, key, value};
}

// Registered so that a gradient of a gradient fails in words: without it Paddle returns None.
std::vector<paddle::Tensor> DoubleBackward(const paddle::Tensor& query,
                                           const paddle::Tensor& key,
                                           const paddle::Tensor& value,
                                           const OptionalTensor& startend_row_indices,
                                           const paddle::Tensor& out,
                                           const paddle::Tensor& softmax_lse,
                                           const OptionalTensor& grad_out,
                                           const OptionalTensor& grad_softmax_lse,
                                           const OptionalTensor& grad_grad_query,
                                           const OptionalTensor& grad_grad_key,
                                           const OptionalTensor& grad_grad_value,
                                           float softmax_scale,
                                           bool causal,
                                           int64_t window_left,
                                           int64_t window_right,
                                           bool has_indices) {
  (void)query, (void)key, (void)value, (void)startend_row_indices, (void)out, (void)softmax_lse;
  (void)grad_out, (void)grad_softmax_lse, (void)grad_grad_query, (void)grad_grad_key;
  (void)grad_grad_value, (void)softmax_scale, (void)causal, (void)window_left, (void)window_right;
  (void)has_indices;
  RequireOk(
      Status::Unsupported("a gradient of its gradient is not supported, first gradients only "
                          "(create_graph=False)"));
  return {};
}

// In the order of the functions' parameters. Paddle takes an optional tensor without elements for
// none, so whether there are indices is told apart.
std::vector<std::string> Attributes() {
  return {"softmax_scale: float",
          "causal: bool",
          "window_left: int64_t",
          "window_right: int64_t",
          "has_indices: bool"};
}

}  // namespace
}  // namespace flashmask::ops

PD_BUILD_OP(paddle_flashmask_attention)
    .Inputs({"query", "key", "value", paddle::Optional("startend_row_indices")})
    .Outputs({"out", "softmax_lse"})
    .Attrs(flashmask::ops::Attributes())
    .SetKernelFn(PD_KERNEL(flashmask::ops::Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(flashmask::ops::InferForwardShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(flashmask::ops::InferForwardDtype));

PD_BUILD_GRAD_OP(paddle_flashmask_attention)
    .Inputs({"query",
             "key",
             "value",
             paddle::Optional("startend_row_indices"),
             "out",
             "softmax_lse",
             paddle::Grad("out"),
             paddle::Grad("softmax_lse")})
    .Outputs({paddle::Grad("query"), paddle::Grad("key"), paddle::Grad("value")})
    .Attrs(flashmask::ops::Attributes())
    .SetKernelFn(PD_KERNEL(flashmask::ops::Backward))
    .SetInferShapeFn(PD_INFER_SHAPE(flashmask::ops::InferBackwardShape));

PD_BUILD_DOUBLE_GRAD_OP(paddle_flashmask_attention)
    .Inputs({"query",
             "key",
             "value",
             paddle::Optional("startend_row_indices"),
             "out",
             "softmax_lse",
             paddle::Optional(paddle::Grad("out")),
             paddle::Optional(paddle::Grad("softmax_lse")),
             paddle::Optional(paddle::Grad(paddle::Grad("query"))),
             paddle::Optional(paddle::Grad(paddle::Grad("key"))),
             paddle::Optional(paddle::Grad(paddle::Grad("value")))})
    .Outputs({paddle::Grad("query"), paddle::Grad("key"), paddle::Grad("value")})
    .Attrs(flashmask::ops::Attributes())
    .SetKernelFn(PD_KERNEL(flashmask::ops::DoubleBackward));
