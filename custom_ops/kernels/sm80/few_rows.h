#pragma once

// Forward calls with few blocks of rows, such as those that decode a token at a time: how their
// work is cut so that it fills a device.
//
// Rows of all query heads of a key head are packed into one block where they share a mask, row by
// row and within a row head by head, so that keys and values are read once for all of them. The
// live tiles of a block of rows are split evenly among several thread blocks, whose results
// combine_splits.cu puts together. All this follows from the sizes alone, so results have the same
// bits on every device.

#include "core/params.h"

#include <algorithm>
#include <cstdint>

namespace flashmask::sm80 {

constexpr int64_t kFewRowsBlock = 64;      // packed rows of a thread block
constexpr int64_t kUsualRowBlock = 128;    // rows of a thread block in all other calls
constexpr int64_t kMostFewRows = 64;       // of a head: half a usual block
constexpr int64_t kMostFewBlocks = 64;     // half of the multiprocessors of a large device
constexpr int64_t kLeastSplitKeys = 1024;  // below, a split has no more to do than its launch takes
constexpr int64_t kLeastKeysOfSplit = 256;       // four tiles
constexpr int64_t kFilledMultiprocessors = 128;  // that splits are to fill

// How the rows and keys of a call are cut.
struct FewRows {
  int32_t packed_heads = 1;  // query heads whose rows lie together
  int32_t row_blocks = 0;    // of a packed head
  int64_t items = 0;         // row blocks of all packed heads
  int32_t splits = 1;        // thread blocks of an item
};

inline int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

// Whether a call is one of these.
inline bool HasFewRows(const AttentionSizes& sizes) {
  const int64_t usual_blocks =
      sizes.batch * sizes.num_heads * CeilDivide(sizes.seqlen_q, kUsualRowBlock);
  return sizes.seqlen_q <= kMostFewRows ||
         (usual_blocks <= kMostFewBlocks && sizes.seqlen_k >= kLeastSplitKeys);
}

// Whether it is one whose keys are worth splitting: then these kernels go before newer ones, too.
inline bool HasFewRowsOfManyKeys(const AttentionSizes& sizes) {
  return HasFewRows(sizes) && sizes.seqlen_k >= kLeastSplitKeys;
}

inline FewRows CutFewRows(const AttentionSizes& sizes, int64_t blocks_per_multiprocessor) {
  FewRows cut;
  const bool share_mask = sizes.num_heads_mask <= sizes.num_heads_k;
  const int64_t packed = share_mask ? sizes.num_heads / sizes.num_heads_k : 1;
  const int64_t row_blocks = CeilDivide(sizes.seqlen_q * packed, kFewRowsBlock);
  cut.packed_heads = static_cast<int32_t>(packed);
  cut.row_blocks = static_cast<int32_t>(row_blocks);
  cut.items = sizes.batch * (sizes.num_heads / packed) * row_blocks;
  const int64_t fair =
      kFilledMultiprocessors * blocks_per_multiprocessor / std::max<int64_t>(1, cut.items);
  const int64_t most = CeilDivide(sizes.seqlen_k, kLeastKeysOfSplit);
  cut.splits = static_cast<int32_t>(std::max<int64_t>(1, std::min(fair, most)));
  return cut;
}

}  // namespace flashmask::sm80
