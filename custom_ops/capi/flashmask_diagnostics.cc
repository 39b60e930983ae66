#include "capi/flashmask_diagnostics.h"

#include "core/diagnostics.h"
#include "core/kernel_registry.h"
#include "core/status.h"

#include <string>

namespace {

// Keeps the message of a failure for the thread that asked.
const char* Report(const flashmask::Status& status) {
  thread_local std::string message;
  message = status.message();
  return status.ok() ? nullptr : message.c_str();
}

}  // namespace

void flashmask_tile_counts(int64_t counts[6]) {
  const flashmask::TileCounts forward = flashmask::ForwardTileCounter().Read();
  const flashmask::TileCounts backward = flashmask::BackwardTileCounter().Read();
  counts[0] = forward.skipped;
  counts[1] = forward.partial;
  counts[2] = forward.full;
  counts[3] = backward.skipped;
  counts[4] = backward.partial;
  counts[5] = backward.full;
}

void flashmask_reset_tile_counts() {
  flashmask::ForwardTileCounter().Reset();
  flashmask::BackwardTileCounter().Reset();
}

void flashmask_set_tile_skipping(int32_t on) { flashmask::SetTileSkipping(on != 0); }

void flashmask_set_deterministic(int32_t on) { flashmask::SetDeterministic(on != 0); }

const char* flashmask_set_cpu_isa(const char* name) {
  return Report(flashmask::RequestCpuIsa(name));
}

const char* flashmask_cpu_isa() { return flashmask::CpuIsaName(flashmask::ActiveCpuIsa()); }

const char* flashmask_set_gpu_kernels(const char* name) {
  return Report(flashmask::RestrictGpuKernels(name));
}

void flashmask_limit_shared_memory(int32_t bytes) { flashmask::LimitSharedMemoryOfBlocks(bytes); }

void flashmask_limit_section_bytes(int64_t bytes) { flashmask::LimitSectionBytes(bytes); }

void flashmask_want_backward_items(int32_t items) { flashmask::SetBackwardItemsWanted(items); }

const char* flashmask_describe_kernels() {
  thread_local std::string text;
  text = flashmask::DescribeKernels();
  return text.c_str();
}
