#pragma once

#include "core/params.h"
#include "core/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace flashmask {

enum class Device { kCpu };

// One kernel: what it serves and how to start it. Kernels register themselves by a static
// `KernelRegistration`; `ops` looks them up and never names one.
struct Kernel {
  const char* name;  // folder of the kernel: "cpu"
  Device device;
  std::vector<DataType> dtypes;
  int64_t head_dim_multiple;
  int64_t max_head_dim;
  Status (*forward)(const ForwardParams&);
  Status (*backward)(const BackwardParams&);
};

struct KernelRegistration {
  explicit KernelRegistration(const Kernel& kernel);
};

// Sets `*found` to the kernel for these, or fails saying what there is.
Status FindKernel(Device device, DataType dtype, int64_t head_dim, const Kernel** found);

// One line per registered kernel.
std::string DescribeKernels();

const char* DataTypeName(DataType dtype);

}  // namespace flashmask
