#pragma once

// Tile numbers of the sm90a kernels, by head dim.

#include <cstdint>

namespace flashmask::sm90a {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;  // threads

// 192 rows by 128 keys: taller tiles read less of K and V from the L2, draw less power and clock
// higher than 128 rows (measured: PERFORMANCE.md).
template <typename Element_, int kHeadDim_>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kGroups = 3;           // warpgroups that compute
  static constexpr int kGroupRows = 64;
  static constexpr int kBlockRows = kGroups * kGroupRows;
  static constexpr int kBlockColumns = 128;
  static constexpr int kStages = 2;  // tiles of K, and of V, under way
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kGroupRegisters = 160;

  static_assert(kHeadDim % 64 == 0, "a row of a tile is whole 128-byte segments for the swizzle");
  static_assert(kLoaderRegisters + kGroups * kGroupRegisters <= 512,
                "what the four warpgroups hold is what they were launched with, 128 a thread");
};

}  // namespace flashmask::sm90a
