#include "core/kernel_registry.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <initializer_list>
#include <set>
#include <string_view>
#include <tuple>

namespace flashmask {
namespace {

// A function-local static: registrations run before main, in no order among files.
std::vector<Kernel>& Kernels() {
  static std::vector<Kernel> kernels;
  return kernels;
}

// The name that RestrictGpuKernels chose, owned by a registration; null: no restriction.
std::atomic<const char*> only_gpu_kernels{nullptr};

bool IsAllowed(const Kernel& kernel) {
  const char* only = only_gpu_kernels;
  if (kernel.device == Device::kCpu) return true;
  return only == nullptr || std::string(only) == kernel.name;
}

// `code` is one of nvcc's names. In every call: nothing is allocated.
bool RunsOn(std::string_view code, int32_t capability) {
  const bool is_ptx = code.substr(0, 1) == "c";  // compute_
  int32_t built_for = 0;
  const char* const number = code.data() + code.find('_') + 1;
  std::from_chars(number, code.data() + code.size(), built_for);
  if (code.back() == 'a') return built_for == capability;
  return built_for <= capability && (is_ptx || built_for / 10 == capability / 10);
}

bool HasCodeFor(const Kernel& kernel, int32_t capability) {
  if (kernel.code == nullptr) return true;
  const std::string_view codes = kernel.code;
  for (size_t begin = 0; begin < codes.size();) {
    const size_t end = std::min(codes.find('+', begin), codes.size());
    if (RunsOn(codes.substr(begin, end - begin), capability)) return true;
    begin = end + 1;
  }
  return false;
}

// Whether it takes such calls, wherever code for them was built.
bool Takes(const Kernel& kernel, Target target, Pass pass, DataType dtype, int64_t head_dim) {
  const bool has_pass =
      pass == Pass::kForward ? kernel.forward != nullptr : kernel.backward != nullptr;
  return has_pass && IsAllowed(kernel) && kernel.device == target.device &&
         kernel.min_compute_capability <= target.compute_capability &&
         kernel.max_compute_capability >= target.compute_capability && head_dim > 0 &&
         head_dim <= kernel.max_head_dim && head_dim % kernel.head_dim_multiple == 0 &&
         std::find(kernel.dtypes.begin(), kernel.dtypes.end(), dtype) != kernel.dtypes.end();
}

bool GoesFirst(const Kernel& kernel, Pass pass, const AttentionSizes& sizes) {
  return pass == Pass::kForward && kernel.goes_first != nullptr && kernel.goes_first(sizes);
}

bool IsBetter(const Kernel& kernel, const Kernel& than, Pass pass, const AttentionSizes& sizes) {
  const bool goes_first = GoesFirst(kernel, pass, sizes);
  if (goes_first != GoesFirst(than, pass, sizes)) return goes_first;
  if (kernel.min_compute_capability != than.min_compute_capability) {
    return kernel.min_compute_capability > than.min_compute_capability;
  }
  return kernel.max_head_dim < than.max_head_dim;
}

std::string CapabilityText(int32_t capability) {
  return "compute capability " + std::to_string(capability / 10) + "." +
         std::to_string(capability % 10);
}

std::string DescribeTarget(Target target) {
  return target.device == Device::kCpu ? "the CPU" : CapabilityText(target.compute_capability);
}

constexpr const char* kBuildAgain =
    " (nothing compiled runs there: build again with FLASHMASK_ARCHS for this GPU)";

// What GPU kernels move at once, and what their workspace starts at a multiple of.
constexpr int64_t kMovedBytes = 16;
constexpr int64_t kMovedElements = 8;  // of 16 bits; they have no others
constexpr int64_t kWorkspaceAlignment = 256;

bool IsMultiple(const void* pointer, int64_t of) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(of) == 0;
}

// The stride of an axis of one element is never used.
bool MayMove(const TensorView& view, int64_t batch, int64_t rows, int64_t heads) {
  const auto fits = [](int64_t count, int64_t stride) {
    return count <= 1 || stride % kMovedElements == 0;
  };
  return IsMultiple(view.data, kMovedBytes) && fits(batch, view.batch_stride) &&
         fits(rows, view.row_stride) && fits(heads, view.head_stride);
}

struct NamedView {
  const char* name;
  const TensorView& view;
  bool has_keys;  // rows and heads of keys, not of queries
  bool may_be_null = false;
};

bool HasElements(const AttentionSizes& sizes, const NamedView& tensor) {
  return sizes.batch > 0 && (tensor.has_keys ? sizes.seqlen_k : sizes.seqlen_q) > 0;
}

// What a kernel would follow to nowhere; on a GPU that costs the process its device.
Status CheckGiven(const AttentionSizes& sizes,
                  const float* softmax_lse,
                  std::initializer_list<NamedView> tensors) {
  for (const NamedView& tensor : tensors) {
    if (tensor.view.data != nullptr || tensor.may_be_null || !HasElements(sizes, tensor)) continue;
    return Status::InvalidArgument(std::string(tensor.name) + " must not be null");
  }
  if (softmax_lse == nullptr && sizes.batch > 0 && sizes.seqlen_q > 0) {
    return Status::InvalidArgument("softmax_lse must not be null");
  }
  return Status::Ok();
}

Status CheckWorkspace(const Execution& execution, size_t needed_bytes) {
  if (needed_bytes > 0 && execution.workspace == nullptr) {
    return Status::InvalidArgument("workspace must not be null");
  }
  if (execution.workspace_bytes < needed_bytes) {
    return Status::InvalidArgument("workspace must have " + std::to_string(needed_bytes) +
                                   " bytes; got " + std::to_string(execution.workspace_bytes));
  }
  if (!IsMultiple(execution.workspace, kWorkspaceAlignment)) {
    return Status::InvalidArgument("workspace must start at a multiple of " +
                                   std::to_string(kWorkspaceAlignment) + " bytes");
  }
  return Status::Ok();
}

Status CheckGpuTensors(const AttentionSizes& sizes, std::initializer_list<NamedView> tensors) {
  for (const NamedView& tensor : tensors) {
    const int64_t rows = tensor.has_keys ? sizes.seqlen_k : sizes.seqlen_q;
    const int64_t heads = tensor.has_keys ? sizes.num_heads_k : sizes.num_heads;
    const TensorView& view = tensor.view;
    if (!HasElements(sizes, tensor) || MayMove(view, sizes.batch, rows, heads)) continue;
    return Status::InvalidArgument(
        std::string(tensor.name) + " must on a GPU start at a multiple of " +
        std::to_string(kMovedBytes) + " bytes and have strides that are multiples of " +
        std::to_string(kMovedElements) + " elements; got strides " +
        std::to_string(view.batch_stride) + ", " + std::to_string(view.row_stride) + " and " +
        std::to_string(view.head_stride) +
        (IsMultiple(view.data, kMovedBytes) ? "" : " and an address that is no such multiple"));
  }
  return Status::Ok();
}

template <typename Params>
Status CheckTensors(const Kernel& kernel,
                    const Params& params,
                    std::initializer_list<NamedView> tensors) {
  Status given = CheckGiven(params.sizes, params.softmax_lse, tensors);
  if (!given.ok() || kernel.device == Device::kCpu) return given;
  const Status workspace = CheckWorkspace(params.execution, WorkspaceBytes(kernel, params));
  return workspace.ok() ? CheckGpuTensors(params.sizes, tensors) : workspace;
}

}  // namespace

KernelRegistration::KernelRegistration(const Kernel& kernel) { Kernels().push_back(kernel); }

Status FindKernel(Target target,
                  Pass pass,
                  DataType dtype,
                  const AttentionSizes& sizes,
                  const Kernel** found) {
  *found = nullptr;
  bool lacks_code = false;
  for (const Kernel& kernel : Kernels()) {
    if (!Takes(kernel, target, pass, dtype, sizes.head_dim)) continue;
    if (!HasCodeFor(kernel, target.compute_capability)) {
      lacks_code = true;
      continue;
    }
    if (*found == nullptr || IsBetter(kernel, **found, pass, sizes)) *found = &kernel;
  }
  if (*found != nullptr) return Status::Ok();
  const char* only = only_gpu_kernels;
  const std::string restriction =
      only == nullptr ? "" : " (of the GPU kernels only " + std::string(only) + " is allowed)";
  return Status::Unsupported("no kernel for " + DescribeTarget(target) + ", dtype " +
                             DataTypeName(dtype) + " and head_dim " +
                             std::to_string(sizes.head_dim) + restriction +
                             (lacks_code ? kBuildAgain : "") + "; there is: " + DescribeKernels());
}

size_t WorkspaceBytes(const Kernel& kernel, const ForwardParams& params) {
  return kernel.forward_workspace == nullptr ? 0 : kernel.forward_workspace(params);
}

size_t WorkspaceBytes(const Kernel& kernel, const BackwardParams& params) {
  return kernel.backward_workspace == nullptr ? 0 : kernel.backward_workspace(params);
}

Status Start(const Kernel& kernel, const ForwardParams& params) {
  const Status checked = CheckTensors(kernel,
                                      params,
                                      {{"query", params.query, false},
                                       {"key", params.key, true},
                                       {"value", params.value, true},
                                       {"out", params.out, false}});
  return checked.ok() ? kernel.forward(params) : checked;
}

Status Start(const Kernel& kernel, const BackwardParams& params) {
  const Status checked = CheckTensors(kernel,
                                      params,
                                      {{"query", params.query, false},
                                       {"key", params.key, true},
                                       {"value", params.value, true},
                                       {"out", params.out, false},
                                       {"grad_out", params.grad_out, false, true},
                                       {"grad_query", params.grad_query, false},
                                       {"grad_key", params.grad_key, true},
                                       {"grad_value", params.grad_value, true}});
  return checked.ok() ? kernel.backward(params) : checked;
}

Status RestrictGpuKernels(const std::string& name) {
  if (name == "auto") {
    only_gpu_kernels = nullptr;
    return Status::Ok();
  }
  std::set<std::string> known;
  for (const Kernel& kernel : Kernels()) {
    if (kernel.device == Device::kCpu) continue;
    known.insert(kernel.name);
    if (name != kernel.name) continue;
    only_gpu_kernels = kernel.name;
    return Status::Ok();
  }
  std::string names = "auto";
  for (const std::string& one : known) names += ", " + one;
  if (known.empty()) names += ", since none was built";
  return Status::InvalidArgument("the GPU kernels must be " + names + "; got '" + name + "'");
}

std::string DescribeKernels() {
  // Registrations come in the order of the link.
  std::vector<Kernel> kernels = Kernels();
  std::sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) {
    const bool a_is_backward = a.forward == nullptr;
    const bool b_is_backward = b.forward == nullptr;
    return std::tie(a.device, a.min_compute_capability, a.max_head_dim, a_is_backward) <
           std::tie(b.device, b.min_compute_capability, b.max_head_dim, b_is_backward);
  });
  std::string text;
  for (const Kernel& kernel : kernels) {
    if (!text.empty()) text += '\n';
    text += std::string(kernel.name);
    if (kernel.device == Device::kCuda) {
      const bool alone = kernel.max_compute_capability == kernel.min_compute_capability;
      text += " (" + CapabilityText(kernel.min_compute_capability) + (alone ? "" : " or newer");
      text += kernel.code == nullptr ? ")" : ", compiled for " + std::string(kernel.code) + ")";
    }
    text += ':';
    for (const DataType dtype : kernel.dtypes) text += std::string(" ") + DataTypeName(dtype);
    text += ", head_dim a multiple of " + std::to_string(kernel.head_dim_multiple) + " up to " +
            std::to_string(kernel.max_head_dim);
    if (kernel.backward == nullptr) text += ", forward";
    if (kernel.forward == nullptr) text += ", backward";
    if (kernel.goes_first != nullptr) text += ", keys split for few rows";
  }
  return text;
}

const char* DataTypeName(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return "float16";
    case DataType::kBFloat16:
      return "bfloat16";
    default:
      return "float32";
  }
}

}  // namespace flashmask
