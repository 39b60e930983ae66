#pragma once

// The live tiles of the forward's work items, found by one warp and read by the one or two threads
// that load.
//
// The warp takes a work item, classifies its tiles of keys 32 at a time for each group of rows, and
// hands live ones over in batches of at most 32, up to kBatches ahead. A tile is one or two parts
// of 64 keys, which are classified by a lane each. The last tile of an item is known only when no
// other follows, so a batch is held back until the next one or the end. Tiles of a batch that
// follow each other and are the same to all groups are a run; the first says how many.

#include "core/column_bounds.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/work_order.cuh"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/sm90a/tile_config.h"
#include "kernels/sm90a/warp_arrivals.h"

#include <cstdint>

namespace flashmask::sm90a {

// What a part of a tile is to a group of rows: a bit if it is live, and one for each interval that
// masks any cell, so that what two parts are together is an "or".
enum GroupClass : uint32_t { kSkip = 0, kFull = 1, kLower = 3, kUpper = 5, kBoth = 7 };
constexpr int kClassBits = 3;
constexpr uint32_t kClassMask = (1u << kClassBits) - 1;
constexpr int kMostParts = 2;  // of a tile
constexpr int kGroupBits = kMostParts * kClassBits;
constexpr uint32_t kBothFull = kFull | kFull << kClassBits;  // two parts

// Flags of a run, above the classes; every tile carries those of its run.
enum RunFlag : uint32_t {
  kFirstRun = 1u << 18,     // of the item
  kLastRun = 1u << 19,      // of the item
  kNoTile = 1u << 20,       // the item has no live tile: nothing to load
  kStop = 1u << 21,         // no item is left
  kQueryParity = 1u << 22,  // of the phase in which the item's query arrives; set by the loader
};
constexpr int kCountShift = 23;  // the tiles from this one to the end of its run, at most 32

// The classes of a tile's parts, the first one lowest.
__device__ __forceinline__ uint32_t ClassesOf(uint32_t bits, int group) {
  return bits >> (group * kGroupBits) & ((1u << kGroupBits) - 1);
}

// What the parts are together.
__device__ __forceinline__ uint32_t EitherOf(uint32_t classes) {
  return (classes | classes >> kClassBits) & kClassMask;
}

__device__ __forceinline__ uint32_t ClassOf(uint32_t bits, int group, int part = 0) {
  return bits >> (group * kGroupBits + part * kClassBits) & kClassMask;
}

// A tile of a work item.
struct ListedTile {
  int32_t tile;   // index of kBlockColumns keys
  uint32_t bits;  // classes, flags and count
};

struct ItemPlace {
  int32_t batch;
  int32_t head;
  int32_t key_head;
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

  __device__ void Init(int readers) {
    for (int i = 0; i < kBatches; ++i) {
      ptx::MbarrierInit(ptx::SharedAddress(&full[i]), kWarpArrivals);
      ptx::MbarrierInit(ptx::SharedAddress(&empty[i]), readers);
    }
  }
};

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
  return kFull | (Touches(range.lower, begin, end) ? kLower : kFull) |
         (Touches(range.upper, begin, end) ? kUpper : kFull);
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
    uint32_t first = kFirstRun;
    TileRange next = RangeOf(ranges, lane_);
    for (int32_t begin = 0; begin < plan_.num_column_tiles; begin += kWarp) {
      const int32_t part = begin + lane_;
      const TileRange range = next;
      next = RangeOf(ranges, part + kWarp);  // on its way while this one is classified
      const uint32_t bits = OfTile(Classify(range, place.row_begin));
      const uint32_t live = __ballot_sync(0xffffffffu, bits != 0);
      if (live == 0) continue;
      if (held_ != 0) {
        Publish(place, first, 0);
        first = 0;
      }
      held_ = live;
      held_tile_ = {part / kParts, bits};
    }
    if (held_ == 0) {
      held_ = 1;
      held_tile_ = {0, kNoTile};
    }
    Publish(place, first, kLastRun);
  }

  __device__ __forceinline__ void Stop() {
    held_ = 1;
    held_tile_ = {0, kStop};
    Publish({}, 0, 0);
  }

 private:
  static constexpr int kParts = Config::kBlockColumns / kPlanColumns;  // of a tile
  static_assert(kParts == 1 || kParts == kMostParts, "a group's classes fit into their bits");
  static_assert(Config::kGroups * kGroupBits <= 18, "flags stand above the classes");

  // The range of a part; of one behind the last, one that covers all rows.
  __device__ __forceinline__ TileRange RangeOf(const int4* ranges, int32_t part) const {
    if (part >= plan_.num_column_tiles) return {EmptyRange(), EmptyRange()};
    const int4 lower = __ldg(ranges + int64_t{part} * 2);
    const int4 upper = __ldg(ranges + int64_t{part} * 2 + 1);
    return {{{lower.x, lower.y}, {lower.z, lower.w}}, {{upper.x, upper.y}, {upper.z, upper.w}}};
  }

  // From the classes of a lane's part those of the tile, in the lane of its first part; 0 in
  // others.
  __device__ __forceinline__ uint32_t OfTile(uint32_t bits) const {
    if constexpr (kParts == 1) return bits;
    const uint32_t second = __shfl_xor_sync(0xffffffffu, bits, 1);
    return lane_ % kParts == 0 ? bits | second << kClassBits : 0;
  }

  __device__ __forceinline__ uint32_t Classify(const TileRange& range, int32_t row_begin) const {
    uint32_t bits = 0;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const int32_t begin = row_begin + group * Config::kGroupRows;
      const int32_t end = min(begin + Config::kGroupRows, seqlen_q_);
      bits |= ClassifyGroup(range, begin, end) << (group * kGroupBits);
    }
    return bits;
  }

  // Hands over the held tiles, with `first_flag` for the first run and `last_flag` for the last.
  __device__ __forceinline__ void Publish(const ItemPlace& place,
                                          uint32_t first_flag,
                                          uint32_t last_flag) {
    ptx::MbarrierWait(ptx::SharedAddress(&list_->empty[slot_]), parity_ ^ 1);
    ListedTile* tiles = list_->tiles[slot_];
    const int count = __popc(held_);
    if (held_ >> lane_ & 1) tiles[__popc(held_ & ((1u << lane_) - 1))] = held_tile_;
    __syncwarp();
    MarkRun(&tiles[lane_].bits, count, first_flag, last_flag);
    if (lane_ == 0) {
      list_->places[slot_] = place;
      list_->counts[slot_] = count;
    }
    __syncwarp();
    if (kEveryLaneArrives || lane_ == 0) {
      ptx::MbarrierArrive(ptx::SharedAddress(&list_->full[slot_]));
    }
    __syncwarp();  // what follows is kept in registers that the warp shares
    slot_ = (slot_ + 1) % LiveList::kBatches;
    parity_ ^= slot_ == 0;
  }

  // Lane i does tile i of `count`.
  __device__ __forceinline__ void MarkRun(uint32_t* bits,
                                          int count,
                                          uint32_t first_flag,
                                          uint32_t last_flag) {
    const uint32_t mine = lane_ < count ? *bits : 0;
    const uint32_t before = __shfl_up_sync(0xffffffffu, mine, 1);
    const bool starts = lane_ >= count || lane_ == 0 || mine != before;
    const uint32_t all_starts = __ballot_sync(0xffffffffu, starts);
    const uint32_t later = all_starts & ~((2u << lane_) - 1);
    const int end = later == 0 ? kWarp : __ffs(static_cast<int>(later)) - 1;
    const bool in_first = (all_starts & ((2u << lane_) - 1)) == 1;
    if (lane_ < count) {
      *bits = mine | (in_first ? first_flag : 0) | (end >= count ? last_flag : 0) |
              static_cast<uint32_t>(end - lane_) << kCountShift;
    }
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

// The warp that takes work items of row blocks off a counter and lists their live tiles. Arguments
// are those of a forward or backward. Who gets which item changes no bits.
template <typename Config, typename Arguments>
__device__ __forceinline__ void ListItems(const Arguments& args,
                                          const WorkOrder& order,
                                          int32_t* next_item,
                                          int32_t num_items,
                                          LiveList* list) {
  ListWriter<Config> writer(args.plan, args.seqlen_q, list);
  for (;;) {
    int32_t ticket = 0;
    if (threadIdx.x % kWarp == 0) ticket = atomicAdd(next_item, 1);
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    if (ticket >= num_items) break;
    const WorkItem item = order.Item<uint32_t>(ticket,
                                               args.plan,
                                               args.num_heads,
                                               args.heads_per_mask,
                                               args.num_heads_mask);
    writer.AddItem({static_cast<int32_t>(item.batch),
                    static_cast<int32_t>(item.head),
                    static_cast<int32_t>(item.head) / args.heads_per_key,
                    static_cast<int32_t>(item.mask),
                    static_cast<int32_t>(item.row_block) * Config::kBlockRows});
  }
  writer.Stop();
}

}  // namespace flashmask::sm90a
