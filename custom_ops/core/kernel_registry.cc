#include "core/kernel_registry.h"

#include <algorithm>

namespace flashmask {
namespace {

// A function-local static: registrations run before main, in no order among files.
std::vector<Kernel>& Kernels() {
  static std::vector<Kernel> kernels;
  return kernels;
}

bool Serves(const Kernel& kernel, Device device, DataType dtype, int64_t head_dim) {
  return kernel.device == device && head_dim > 0 && head_dim <= kernel.max_head_dim &&
         head_dim % kernel.head_dim_multiple == 0 &&
         std::find(kernel.dtypes.begin(), kernel.dtypes.end(), dtype) != kernel.dtypes.end();
}

}  // namespace

KernelRegistration::KernelRegistration(const Kernel& kernel) { Kernels().push_back(kernel); }

Status FindKernel(Device device, DataType dtype, int64_t head_dim, const Kernel** found) {
  for (const Kernel& kernel : Kernels()) {
    if (Serves(kernel, device, dtype, head_dim)) {
      *found = &kernel;
      return Status::Ok();
    }
  }
  return Status::Unsupported("no kernel for dtype " + std::string(DataTypeName(dtype)) +
                             " and head_dim " + std::to_string(head_dim) +
                             "; there is: " + DescribeKernels());
}

std::string DescribeKernels() {
  std::string text;
  for (const Kernel& kernel : Kernels()) {
    if (!text.empty()) text += '\n';
    text += std::string(kernel.name) + ":";
    for (const DataType dtype : kernel.dtypes) text += std::string(" ") + DataTypeName(dtype);
    text += ", head_dim a multiple of " + std::to_string(kernel.head_dim_multiple) + " up to " +
            std::to_string(kernel.max_head_dim);
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
