#pragma once

#include "kernels/cpu/tile_config.h"

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace flashmask::cpu {

// Floats of one worker, cut into cache-line aligned tiles in the order they are taken.
class Workspace {
 public:
  // Throws std::bad_alloc only.
  explicit Workspace(int64_t num_floats)
      : data_(static_cast<float*>(
            ::operator new(static_cast<size_t>(num_floats) * sizeof(float), kAlignment))),
        next_(data_.get()) {}

  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }

  // The caller sums up what it takes when it sizes the workspace.
  float* Take(int64_t num_floats) {
    float* taken = next_;
    next_ += num_floats;
    return taken;
  }

 private:
  static constexpr std::align_val_t kAlignment{kCacheLine};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlignment); }
  };

  std::unique_ptr<float, Free> data_;
  float* next_;
};

inline std::vector<Workspace> MakeWorkspaces(int32_t num_workers, int64_t num_floats) {
  std::vector<Workspace> workspaces;
  workspaces.reserve(static_cast<size_t>(num_workers));
  for (int32_t i = 0; i < num_workers; ++i) workspaces.emplace_back(num_floats);
  return workspaces;
}

}  // namespace flashmask::cpu
