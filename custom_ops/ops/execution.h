#pragma once

// Where a call runs: on the place that its tensors share, on the stream that Paddle uses there, in
// memory from Paddle's allocator.

#include "core/device_query.h"
#include "core/diagnostics.h"
#include "core/kernel_registry.h"
#include "core/params.h"
#include "ops/op_errors.h"

#include "paddle/extension.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

// The OpenMP runtime that Paddle brought into the process, if any; we bring none.
extern "C" __attribute__((weak)) int omp_get_max_threads();

// Paddle's flag, where the library of this Paddle has it.
namespace paddle_flags {
extern __attribute__((weak, visibility("default"))) bool FLAGS_cudnn_deterministic;  // NOLINT
}  // namespace paddle_flags

namespace flashmask::ops {

using NamedTensors = std::vector<std::pair<const char*, const paddle::Tensor*>>;

inline void RequireOnePlace(const NamedTensors& tensors) {
  const auto is_elsewhere = [&](const auto& named) {
    return named.second->place() != tensors.front().second->place();
  };
  if (std::none_of(tensors.begin(), tensors.end(), is_elsewhere)) return;
  std::string places;
  for (const auto& [name, tensor] : tensors) {
    places += std::string(places.empty() ? "" : ", ") + name + " on " + PlaceText(*tensor);
  }
  Require(false, "all tensors must be on one device; got ", places);
}

inline int32_t NumThreads() {
  return omp_get_max_threads == nullptr ? 1 : std::max(1, omp_get_max_threads());
}

// Where the kernels of a tensor's place are to be looked up.
inline Target TargetOf(const paddle::Tensor& query) {
  Target target;
  if (query.is_cpu()) return target;
  Require(query.is_gpu(), "query must be on the CPU or a CUDA device; got ", PlaceText(query));
  target.device = Device::kCuda;
  RequireOk(ComputeCapability(query.place().GetDeviceId(), &target.compute_capability));
  return target;
}

inline Execution ExecutionOf([[maybe_unused]] const paddle::Tensor& query) {
  Execution execution;
  execution.num_threads = NumThreads();
#ifdef PADDLE_WITH_CUDA
  if (query.is_gpu()) {
    execution.device = query.place().GetDeviceId();
    execution.stream = query.stream();
  }
#endif
  return execution;
}

// Memory of a kernel for one call; work enqueued later on the same stream may have it afterwards.
class Workspace {
 public:
  Workspace(size_t bytes, const paddle::Tensor& query, Execution* execution) {
    if (bytes == 0) return;
    tensor_ = paddle::empty({static_cast<int64_t>(bytes)}, paddle::DataType::UINT8, query.place());
    execution->workspace = tensor_.data();
    execution->workspace_bytes = bytes;
  }

 private:
  paddle::Tensor tensor_;
};

// Whether somebody asked for the same bits in every run: us, or Paddle by its own flag.
inline bool WantsDeterminism() {
  const bool* flag = &paddle_flags::FLAGS_cudnn_deterministic;
  return Deterministic() || (flag != nullptr && *flag);
}

}  // namespace flashmask::ops
