#pragma once

// Tile numbers of the sm90a kernels, by head dim.

#include <cstddef>
#include <cstdint>

namespace flashmask::sm90a {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;  // threads

constexpr int kMostSharedBytes = 227 << 10;  // of a block, on compute capability 9.0
constexpr size_t kTicketBytes = 256;         // of the counters behind a plan

// Swizzled tiles as wgmma and the copy engine know them: blocks of 64 columns of 16 bits.
constexpr int kWgmmaDepth = 16;      // the sum of one wgmma runs over so many
constexpr int kSwizzleColumns = 64;  // of a block
constexpr int kSwizzleBytes = 128;   // of a row of a block
constexpr int kStepBytes = 32;       // kWgmmaDepth columns
constexpr int kStepsPerBlock = kSwizzleColumns / kWgmmaDepth;
constexpr uint32_t kUnusedDistance = 16;  // where a descriptor needs no leading one

// Measured choices, see PERFORMANCE.md. Up to head dim 128 three groups of 64 rows: taller tiles
// read K and V from the L2 less often, which leaves more power to the tensor cores. Above two,
// since the output of a row takes more registers.
constexpr int ForwardGroups(int head_dim) { return head_dim <= 128 ? 3 : 2; }

// Keys of a tile: 128, some costs being per tile; 64 for two groups, whose scores and weights would
// not fit into registers together else.
constexpr int ForwardColumns(int head_dim) { return ForwardGroups(head_dim) == 3 ? 128 : 64; }

// Tiles of K, and as many of V, under way; above head dim 64 shared memory holds no more.
constexpr int ForwardStages(int head_dim) {
  if (head_dim <= 64) return 4;
  return head_dim == 192 ? 3 : 2;
}

// Threads that start copies: with two stages of large tiles K need not wait for room for V.
constexpr int ForwardLoaders(int head_dim) { return head_dim <= 192 ? 1 : 2; }

// Of a group's query, times 16 columns: kept in registers for an item, which spares shared memory
// as many reads. At 192 all of it; at 256 that gained nothing, below there are no registers left.
constexpr int ForwardHeld(int head_dim) { return head_dim == 192 ? 12 : 0; }

template <typename Element_, int kHeadDim_>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what is computed; the tensors' may be less
  static constexpr int kBoxes = (kHeadDim + kSwizzleColumns - 1) / kSwizzleColumns;  // of a row
  static constexpr int kTileWidth = kBoxes * kSwizzleColumns;  // elements of a row of a tile
  static constexpr int kGroups = ForwardGroups(kHeadDim);      // warpgroups that compute
  static constexpr int kGroupRows = 64;
  static constexpr int kBlockRows = kGroups * kGroupRows;
  static constexpr int kBlockColumns = ForwardColumns(kHeadDim);
  static constexpr int kStages = ForwardStages(kHeadDim);  // tiles of K, and of V, under way
  // Whether Q K^T of a tile runs beside P V of the one before, and that beside the softmax. Scores
  // and weights must fit into registers together; where they do not, P V of a tile's first keys
  // runs beside the softmax of the others.
  static constexpr bool kOverlap = kBlockColumns == 64 || kHeadDim <= 64;
  static constexpr bool kTurns = kGroups == 3;  // groups start their products one after the other
  static constexpr int kHeld = ForwardHeld(kHeadDim);
  static constexpr int kLoaders = ForwardLoaders(kHeadDim);
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kLoaderRegisters = kGroups == 3 ? 32 : 56;
  static constexpr int kGroupRegisters = kGroups == 3 ? 160 : 224;
  // Of a thread at the launch: its part of the multiprocessor's, in steps of 8.
  static constexpr int kLaunchRegisters = (1 << 16) / kThreads / 8 * 8;

  static_assert(kHeadDim % 32 == 0, "output is stored by 32 columns");
  static_assert(kBlockColumns % 64 == 0, "a tile is whole ranges of the plan");
  static_assert(kLoaderRegisters + kGroups * kGroupRegisters <= (1 + kGroups) * kLaunchRegisters,
                "what the warpgroups hold is what they were launched with");
};

}  // namespace flashmask::sm90a
