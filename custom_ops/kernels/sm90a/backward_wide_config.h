#pragma once

// Tile numbers of the sm90a backward of wide head dims, and what a launch passes to its kernels.
//
// grad_key and grad_value of 64 keys fill the registers of two warpgroups, and shared memory holds
// no share of grad_query beside the tiles. So there are two kernels, which form scores and their
// gradients twice: seven products in place of five, but no sum leaves its registers, and all have a
// fixed order.

#include "core/params.h"
#include "kernels/common/work_order.cuh"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

constexpr int kWideTileRows = 64;  // of every tile: rows of query and grad_out, keys, values
constexpr int kWideCells = kWideTileRows / 2;  // floats of a thread of 64 x 64 scores

// Of the kernel that owns keys.
template <typename Element_, int kHeadDim_>
struct WideKeysConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kBoxes = kHeadDim / kSwizzleColumns;  // of a row
  static constexpr int kGroupColumns = kSwizzleColumns;      // boxes of keys do not overlap
  static constexpr int kKeys = kWideTileRows;
  static constexpr int kRows = kWideTileRows;
  static constexpr int kGroups = 2;
  static constexpr int kThreads = kWarpgroup * (1 + kGroups);
  static constexpr int kQueryStages = kHeadDim <= 192 ? 3 : 2;
  static constexpr int kGradOutStages = kQueryStages;
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static constexpr int kTileFloats = kRows * kHeadDim;  // as many as a step loads words
  // Of a group's tile of keys, times 16 columns: kept in registers for an item, where there is
  // room, which spares shared memory as many reads.
  static constexpr int kHeld = kHeadDim <= 192 ? 12 : 8;

  static_assert(kHeadDim == 192 || kHeadDim == 256, "wgmma is written for these only");
};

// Of the kernel that owns rows; names as ListWriter wants them.
template <typename Element_, int kHeadDim_>
struct WideRowsConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kTile = kWideTileRows * kHeadDim;  // elements
  static constexpr int kBlockColumns = kWideTileRows;
  static constexpr int kGroups = 2;
  static constexpr int kGroupRows = kWideTileRows;
  static constexpr int kBlockRows = kGroups * kGroupRows;
  static constexpr int kThreads = kWarpgroup * (1 + kGroups);
  static constexpr int kKeyStages = kHeadDim <= 192 ? 3 : 2;  // a key tile is read until dQ of it
  static constexpr int kValueStages = kHeadDim <= 192 ? 2 : 1;
  static constexpr int kHeld = kHeadDim <= 192 ? 6 : 1;  // of a group's query, as above
  static constexpr int kProducerRegisters = 40;
  static constexpr int kConsumerRegisters = 232;

  static_assert(kBlockRows == kPlanRowBlock, "an item is an entry of the plan's order of rows");
};

// Number of a named barrier of the kernel that owns rows; 0 is __syncthreads'. A group waits for
// its own, and the next one, until the other passes the turn on.
enum NamedTurn : int { kWideTurn = 1 };

// `both` serves either kernel: the maps have boxes of 64 rows; items, ticket and heads of a section
// are those of the kernel that owns keys, the others follow.
struct WideBackwardArguments {
  BackwardArguments both;
  TensorView grad_key;
  TensorView grad_value;
  int32_t seqlen_k;
  int32_t* next_row_item;  // zero at the start
  int32_t num_row_items;
  WorkOrder row_order;
};

}  // namespace flashmask::sm90a
