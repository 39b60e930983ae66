#pragma once

// The plan of a mask on the device: what the loops of all GPU kernels read instead of the indices.
//
// Built once per call by BuildMaskPlan (mask_plan.cu), in memory that is linear in the sequence;
// columns are padded to whole key blocks, with columns that nobody sees:
//   bounds   16 bytes a key: the two masked row intervals of a column, clipped, causal lowered
//   ranges   32 bytes per 64 keys: what they do to a tile of rows (core/column_bounds.h)
//   order    4 bytes per row block: row blocks of a mask, most live tiles first; for a backward
//            of key blocks, or these by place

#include "core/column_bounds.h"
#include "core/params.h"
#include "core/status.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace flashmask {

constexpr int kPlanColumns = 64;    // columns of a range
constexpr int kPlanRowBlock = 128;  // rows of an entry of `order`, unless a kernel wants others
constexpr int kPlanKeyBlock = 128;  // keys of an entry of `key_order`
constexpr int kPlanRowStep = 64;    // rows of a live tile of a key block

// Pointers to device memory, cut out of one workspace.
struct MaskPlanView {
  int4* bounds = nullptr;        // [masks, column_tiles * kPlanColumns]: lower, then upper interval
  TileRange* ranges = nullptr;   // [masks, column_tiles]
  int32_t* costs = nullptr;      // [masks, row_blocks]: live tiles of the row block
  int32_t* order = nullptr;      // [masks, row_blocks]
  int32_t* key_costs = nullptr;  // [masks, key_blocks]: live row steps of the key block
  int32_t* key_order = nullptr;  // [masks, key_blocks]
  int64_t* key_sums = nullptr;   // [masks]: of key_costs
  int32_t* finished = nullptr;   // [2, masks]: thread blocks that have counted rows' or keys' tiles
  int32_t row_block = kPlanRowBlock;
  int32_t num_masks = 0;  // batch times mask heads
  int32_t num_column_tiles = 0;
  int32_t num_row_blocks = 0;
  int32_t num_key_blocks = 0;
};

// Bytes of the workspace that a plan needs.
size_t MaskPlanBytes(const AttentionSizes& sizes, int row_block = kPlanRowBlock);

// Lays the plan out in `workspace` (256-byte aligned, MaskPlanBytes long); fills nothing. Every
// workspace starts with its plan: the arrays above, in that order, each from a multiple of 256
// bytes on (tests read it there).
MaskPlanView LayOutMaskPlan(const AttentionSizes& sizes,
                            void* workspace,
                            int row_block = kPlanRowBlock);

// Which of the orders a kernel reads: of row blocks, of key blocks, or of both, by falling cost; or
// of key blocks by place, but long ones last.
enum class PlanOrders { kRowBlocks, kKeyBlocks, kBoth, kKeyPlaces, kNone };

constexpr int kLongBlock = 8;

// Whether a key block has more than kLongBlock times the live steps of the mean one of its mask.
FLASHMASK_HOST_DEVICE bool IsLongKeyBlock(int64_t cost, int64_t sum_of_costs, int64_t num_blocks) {
  return cost * num_blocks > kLongBlock * sum_of_costs;
}

// Memory that the kernels of a plan set to zero on the way, for those behind them; both multiples
// of 16 bytes.
struct ClearedBytes {
  void* begin = nullptr;
  size_t count = 0;
};

// Enqueues the kernels that fill the plan: bounds, ranges and the orders asked for, with their
// costs and, for key blocks, key_sums.
Status BuildMaskPlan(const AttentionSizes& sizes,
                     const MaskParams& mask,
                     const MaskPlanView& plan,
                     PlanOrders orders,
                     cudaStream_t stream,
                     const ClearedBytes& cleared = {});

// Whether every column's lower interval reaches to the last row and its upper one starts at the
// first.
inline bool HasHalfLines(const MaskParams& mask) {
  return mask.width == 0 || (mask.causal ? mask.width == 1 : mask.width == 2);
}

// Class of rows [row_begin, row_end) by the keys of one or two neighbouring ranges.
FLASHMASK_HOST_DEVICE TileClass ClassifyPair(const TileRange& first,
                                             const TileRange& second,
                                             bool has_second,
                                             int32_t row_begin,
                                             int32_t row_end) {
  const TileClass one = ClassifyTile(first, row_begin, row_end);
  if (!has_second) return one == TileClass::kFull ? TileClass::kPartial : one;
  const TileClass other = ClassifyTile(second, row_begin, row_end);
  return one == other ? one : TileClass::kPartial;
}

}  // namespace flashmask
