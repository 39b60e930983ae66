#pragma once

// The live tiles of the forward's work items, found by one warp and read by the thread that loads.
//
// The warp takes a work item, classifies its tiles of keys 32 at a time for each group of rows, and
// hands live ones over in batches of at most 32, up to kBatches ahead. The last tile of an item is
// known only when no other follows, so a batch is held back until the next one or the end.

#include "core/column_bounds.h"
#include "kernels/common/mask_plan.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

// What a tile is to a group of rows; the kinds of partial tiles say which interval masks any cell.
enum GroupClass : uint32_t { kSkip = 0, kFull = 1, kLower = 2, kUpper = 3, kBoth = 4 };
constexpr int kClassBits = 3;
constexpr uint32_t kClassMask = (1u << kClassBits) - 1;

// Flags of a tile above the classes of at most 4 groups.
enum TileFlag : uint32_t {
  kFirstTile = 1u << 12,
  kLastTile = 1u << 13,
  kNoTile = 1u << 14,       // the item has no live tile: nothing to load
  kStop = 1u << 15,         // no item is left
  kQueryParity = 1u << 16,  // of the phase in which the item's query arrives; set by the loader
};

__device__ __forceinline__ uint32_t ClassOf(uint32_t bits, int group) {
  return bits >> (group * kClassBits) & kClassMask;
}

// A tile of a work item.
struct ListedTile {
  int32_t tile;   // index of 128 keys
  uint32_t bits;  // classes and flags
};

struct ItemPlace {
  int32_t batch;
  int32_t head;
  int32_t mask;
  int32_t row_begin;
};

struct LiveList {
  static constexpr int kBatches = 2;  // more would take items that other blocks could begin sooner

  ListedTile tiles[kBatches][kWarp];
  ItemPlace places[kBatches];
  int32_t counts[kBatches];
  alignas(8) uint64_t full[kBatches];
  uint64_t empty[kBatches];

  __device__ void Init() {
    for (int i = 0; i < kBatches; ++i) {
      ptx::MbarrierInit(ptx::SharedAddress(&full[i]), 1);
      ptx::MbarrierInit(ptx::SharedAddress(&empty[i]), 1);
    }
  }
};

__device__ __forceinline__ IntervalRange Fold(const IntervalRange& a, const IntervalRange& b) {
  return {{max(a.cover.begin, b.cover.begin), min(a.cover.end, b.cover.end)},
          {min(a.touch.begin, b.touch.begin), max(a.touch.end, b.touch.end)}};
}

__device__ __forceinline__ bool Covers(const IntervalRange& range, int32_t begin, int32_t end) {
  return range.cover.begin <= begin && range.cover.end >= end;
}

__device__ __forceinline__ bool Touches(const IntervalRange& range, int32_t begin, int32_t end) {
  return range.touch.begin < end && range.touch.end > begin;
}

// Class of rows [begin, end) by the columns behind `range`; no rows are skipped.
__device__ __forceinline__ uint32_t ClassifyGroup(const TileRange& range,
                                                  int32_t begin,
                                                  int32_t end) {
  if (begin >= end || Covers(range.lower, begin, end) || Covers(range.upper, begin, end)) {
    return kSkip;
  }
  const bool lower = Touches(range.lower, begin, end);
  const bool upper = Touches(range.upper, begin, end);
  return lower ? (upper ? kBoth : kLower) : (upper ? kUpper : kFull);
}

// The side of the warp that fills the list.
template <typename Config>
class ListWriter {
 public:
  __device__ ListWriter(const MaskPlanView& plan, int32_t seqlen_q, LiveList* list)
      : plan_(plan),
        seqlen_q_(seqlen_q),
        list_(list),
        lane_(threadIdx.x % kWarp) {}

  __device__ __forceinline__ void AddItem(const ItemPlace& place) {
    const auto* ranges =
        reinterpret_cast<const int4*>(plan_.ranges + int64_t{place.mask} * plan_.num_column_tiles);
    held_ = 0;
    uint32_t first = kFirstTile;
    for (int32_t begin = 0; begin < plan_.num_key_blocks; begin += kWarp) {
      const int32_t tile = begin + lane_;
      uint32_t bits = 0;
      if (tile < plan_.num_key_blocks) bits = Classify(ranges + int64_t{tile} * 4, place.row_begin);
      const uint32_t live = __ballot_sync(0xffffffffu, bits != 0);
      if (live == 0) continue;
      if (held_ != 0) Publish(place, 0);
      held_ = live;
      held_tile_ = {tile, bits};
      if (lane_ == __ffs(static_cast<int>(live)) - 1) held_tile_.bits |= first;
      first = 0;
    }
    if (held_ == 0) {
      held_ = 1;
      held_tile_ = {0, kFirstTile | kNoTile};
    }
    Publish(place, kLastTile);
  }

  __device__ __forceinline__ void Stop() {
    held_ = 1;
    held_tile_ = {0, kStop};
    Publish({}, 0);
  }

 private:
  // `ranges` of the two halves of a tile.
  __device__ __forceinline__ uint32_t Classify(const int4* ranges, int32_t row_begin) const {
    const auto half = [&](int i) {
      const int4 lower = __ldg(ranges + 2 * i);
      const int4 upper = __ldg(ranges + 2 * i + 1);
      return TileRange{{{lower.x, lower.y}, {lower.z, lower.w}},
                       {{upper.x, upper.y}, {upper.z, upper.w}}};
    };
    const TileRange first = half(0);
    const TileRange second = half(1);
    const TileRange range{Fold(first.lower, second.lower), Fold(first.upper, second.upper)};
    uint32_t bits = 0;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const int32_t begin = row_begin + group * Config::kGroupRows;
      const int32_t end = min(begin + Config::kGroupRows, seqlen_q_);
      bits |= ClassifyGroup(range, begin, end) << (group * kClassBits);
    }
    return bits;
  }

  // Hands over the held tiles; `flag` marks the last of them.
  __device__ __forceinline__ void Publish(const ItemPlace& place, uint32_t flag) {
    ptx::MbarrierWait(ptx::SharedAddress(&list_->empty[slot_]), parity_ ^ 1);
    if (held_ >> lane_ & 1) {
      const int last = 31 - __clz(static_cast<int>(held_));
      if (lane_ == last) held_tile_.bits |= flag;
      list_->tiles[slot_][__popc(held_ & ((1u << lane_) - 1))] = held_tile_;
    }
    if (lane_ == 0) {
      list_->places[slot_] = place;
      list_->counts[slot_] = __popc(held_);
    }
    __syncwarp();
    if (lane_ == 0) ptx::MbarrierArrive(ptx::SharedAddress(&list_->full[slot_]));
    slot_ = (slot_ + 1) % LiveList::kBatches;
    parity_ ^= slot_ == 0;
  }

  const MaskPlanView& plan_;
  int32_t seqlen_q_;
  LiveList* list_;
  int lane_;
  int slot_ = 0;
  uint32_t parity_ = 0;
  uint32_t held_ = 0;  // lanes whose tile is held back
  ListedTile held_tile_{};
};

}  // namespace flashmask::sm90a
