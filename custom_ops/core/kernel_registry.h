#pragma once

#include "core/params.h"
#include "core/status.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flashmask {

enum class Device { kCpu, kCuda };
enum class Pass { kForward, kBackward };

// Where a call is to run; `compute_capability` is 10 * major + minor of the GPU, 0 on the CPU.
struct Target {
  Device device = Device::kCpu;
  int32_t compute_capability = 0;
};

constexpr int32_t kNewestCapability = INT32_MAX;

// One kernel: what it serves and how to start it. Kernels register themselves by a static
// `KernelRegistration`; `ops` and `capi` look them up and never name one.
struct Kernel {
  const char* name;  // folder of the kernel: "cpu", "sm80", "sm90a"
  Device device;
  int32_t min_compute_capability;
  int32_t max_compute_capability;  // kNewestCapability, or the same as the least
  std::vector<DataType> dtypes;
  int64_t head_dim_multiple;
  int64_t max_head_dim;
  Status (*forward)(const ForwardParams&);    // null: the backward alone
  Status (*backward)(const BackwardParams&);  // null: the forward alone
  // Bytes of device memory that `execution.workspace` must have; null: none.
  size_t (*forward_workspace)(const ForwardParams&);
  size_t (*backward_workspace)(const BackwardParams&);
  // Forward calls that it serves better than newer architectures' kernels do; null: none.
  bool (*goes_first)(const AttentionSizes&) = nullptr;
  // What it was compiled for, by nvcc's names with + between: sm_80 runs on 8.x from 8.0 on, sm_90a
  // on 9.0 alone, compute_90 on 9.0 and newer; null: all that it names above.
  const char* code = nullptr;
};

struct KernelRegistration {
  explicit KernelRegistration(const Kernel& kernel);
};

// Sets `*found` to the kernel of the newest architecture that the target runs, with the least head
// dim that holds that of `sizes`, or fails saying what there is. Kernels that go first for a
// forward of these sizes come before newer ones.
Status FindKernel(Target target,
                  Pass pass,
                  DataType dtype,
                  const AttentionSizes& sizes,
                  const Kernel** found);

// What `execution.workspace` must have for such a call.
size_t WorkspaceBytes(const Kernel& kernel, const ForwardParams& params);
size_t WorkspaceBytes(const Kernel& kernel, const BackwardParams& params);

// Starts a kernel, once its tensors are known to lie as its device wants them, and the workspace to
// be as long as it asks for.
Status Start(const Kernel& kernel, const ForwardParams& params);
Status Start(const Kernel& kernel, const BackwardParams& params);

// Lets FindKernel see only the GPU kernels of this name, for tests and comparisons; "auto": all.
Status RestrictGpuKernels(const std::string& name);

// One line per registered kernel.
std::string DescribeKernels();

const char* DataTypeName(DataType dtype);

}  // namespace flashmask
