#pragma once

// Tile numbers of the sm90a kernels, by head dim.

#include <cstdint>

namespace flashmask::sm90a {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;  // threads

// Swizzled tiles as wgmma and the copy engine know them: blocks of 64 columns of 16 bits.
constexpr int kWgmmaDepth = 16;      // the sum of one wgmma runs over so many
constexpr int kSwizzleColumns = 64;  // of a block
constexpr int kSwizzleBytes = 128;   // of a row of a block
constexpr int kStepBytes = 32;       // kWgmmaDepth columns
constexpr int kStepsPerBlock = kSwizzleColumns / kWgmmaDepth;
constexpr uint32_t kUnusedDistance = 16;  // where a descriptor needs no leading one

// 192 rows: taller tiles read K and V from the L2 less often, which leaves more power to the tensor
// cores. Measured choices of the rest, see PERFORMANCE.md:
//   head dim 128  64 keys, so that Q K^T of the next tile fits into registers beside this one's
//                 weights, and dead 64 x 64 tiles are skipped
//   head dim 64   128 keys, since the softmax is the bottleneck, and its fixed costs are per tile
constexpr int ForwardColumns(int head_dim) { return head_dim <= 64 ? 128 : 64; }
constexpr int ForwardStages(int head_dim) { return head_dim <= 64 ? 4 : 5; }

template <typename Element_, int kHeadDim_>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kGroups = 3;           // warpgroups that compute
  static constexpr int kGroupRows = 64;
  static constexpr int kBlockRows = kGroups * kGroupRows;
  static constexpr int kBlockColumns = ForwardColumns(kHeadDim);
  static constexpr int kStages = ForwardStages(kHeadDim);  // tiles of K, and of V, under way
  // Whether a group has Q K^T of the next tile under way during the softmax of this one.
  static constexpr bool kOverlap = kBlockColumns == 64;
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kLoaderRegisters = 56;
  static constexpr int kGroupRegisters = 152;

  static_assert(kHeadDim % 64 == 0, "a row of a tile is whole 128-byte segments for the swizzle");
  static_assert(kBlockColumns % 64 == 0, "a tile is whole ranges of the plan");
  static_assert(kLoaderRegisters + kGroups * kGroupRegisters <= 512,
                "what the four warpgroups hold is what they were launched with, 128 a thread");
};

}  // namespace flashmask::sm90a
