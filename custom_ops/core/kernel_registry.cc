#include "core/kernel_registry.h"

#include <algorithm>
#include <atomic>
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
  return only == nullptr ? !kernel.on_request : std::string(only) == kernel.name;
}

bool Serves(const Kernel& kernel, Target target, Pass pass, DataType dtype, int64_t head_dim) {
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

}  // namespace

KernelRegistration::KernelRegistration(const Kernel& kernel) { Kernels().push_back(kernel); }

Status FindKernel(Target target,
                  Pass pass,
                  DataType dtype,
                  const AttentionSizes& sizes,
                  const Kernel** found) {
  *found = nullptr;
  for (const Kernel& kernel : Kernels()) {
    if (!Serves(kernel, target, pass, dtype, sizes.head_dim)) continue;
    if (*found == nullptr || IsBetter(kernel, **found, pass, sizes)) *found = &kernel;
  }
  if (*found != nullptr) return Status::Ok();
  const char* only = only_gpu_kernels;
  const std::string restriction =
      only == nullptr ? "" : " (of the GPU kernels only " + std::string(only) + " is allowed)";
  return Status::Unsupported("no kernel for " + DescribeTarget(target) + ", dtype " +
                             DataTypeName(dtype) + " and head_dim " +
                             std::to_string(sizes.head_dim) + restriction +
                             "; there is: " + DescribeKernels());
}

Status RestrictGpuKernels(const std::string& name) {
  if (name == "auto") {
    only_gpu_kernels = nullptr;
    return Status::Ok();
  }
  for (const Kernel& kernel : Kernels()) {
    if (kernel.device == Device::kCpu || name != kernel.name) continue;
    only_gpu_kernels = kernel.name;
    return Status::Ok();
  }
  return Status::InvalidArgument("the GPU kernels must be auto or the name of one of\n" +
                                 DescribeKernels() + "\ngot '" + name + "'");
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
      text += " (" + CapabilityText(kernel.min_compute_capability) + (alone ? ")" : " or newer)");
    }
    text += ':';
    for (const DataType dtype : kernel.dtypes) text += std::string(" ") + DataTypeName(dtype);
    text += ", head_dim a multiple of " + std::to_string(kernel.head_dim_multiple) + " up to " +
            std::to_string(kernel.max_head_dim);
    if (kernel.backward == nullptr) text += ", forward";
    if (kernel.forward == nullptr) text += ", backward";
    if (kernel.goes_first != nullptr) text += ", keys split for few rows";
    if (kernel.on_request) text += ", on request";
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
