#pragma once

// The producer warps of the forward (forward.cuh): what they share with those that compute, who
// lists live tiles, and who starts the copies.

#include "core/params.h"
#include "kernels/common/mask_plan.h"
#include "kernels/common/work_order.cuh"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/ring_place.cuh"
#include "kernels/sm90a/tile_config.h"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

struct KeyMaps {
  CUtensorMap tile;  // boxes of kBlockColumns rows
  CUtensorMap part;  // of kPlanColumns
};

// What a launch passes to the kernel: pointers to device memory, strides in elements.
struct ForwardArguments {
  CUtensorMap query;  // boxes of 64 rows
  KeyMaps key;
  KeyMaps value;
  TensorView out;
  float* softmax_lse;
  int32_t* ticket;  // the next work item; starts at 0
  int32_t num_items;
  int32_t seqlen_q;
  int32_t head_dim;
  int32_t num_heads;
  int32_t heads_per_key;   // query heads of a key head
  int32_t heads_per_mask;  // query heads of a mask head
  int32_t num_heads_mask;
  float scale_log2;  // |softmax_scale| * log2(e), at least kSmallestScale
  bool negate;       // softmax_scale is negative
  WorkOrder order;
  MaskPlanView plan;
};

// What the groups must know of the tile in a stage.
struct TileNote {
  uint32_t bits;      // see live_list.cuh
  int32_t row_begin;  // of the item
  int32_t head;
  int32_t batch;
};

template <typename Config>
struct ForwardShared {
  using Element = typename Config::Element;
  // More than stages: a stage of K may be filled again while the note of its tile is read.
  static constexpr int kNotes = Config::kStages < 4 ? 4 : 8;
  static_assert(kNotes > Config::kStages, "a note must outlive its stage of K");

  alignas(1024) Element query[Config::kGroups][Config::kGroupRows * Config::kTileWidth];
  alignas(1024) Element key[Config::kStages][Config::kBlockColumns * Config::kTileWidth];
  alignas(1024) Element value[Config::kStages][Config::kBlockColumns * Config::kTileWidth];
  alignas(16) int4 bounds[kNotes][Config::kBlockColumns];
  alignas(16) TileNote notes[kNotes];
  LiveList list;
  uint64_t query_full[Config::kGroups];
  uint64_t query_empty[Config::kGroups];
  uint64_t key_full[Config::kStages];
  uint64_t key_empty[Config::kStages];
  uint64_t value_full[Config::kStages];
  uint64_t value_empty[Config::kStages];

  __device__ void Init() {
    constexpr int kGroupArrivals = kWarpgroup / kWarp * kWarpArrivals;
    const auto init = [](uint64_t& barrier, int count) {
      ptx::MbarrierInit(ptx::SharedAddress(&barrier), count);
    };
    for (int i = 0; i < Config::kGroups; ++i) {
      init(query_full[i], 1);
      init(query_empty[i], kGroupArrivals);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      init(key_full[i], 1);
      init(value_full[i], 1);
      init(key_empty[i], Config::kGroups * kGroupArrivals);
      init(value_empty[i], Config::kGroups * kGroupArrivals);
    }
    list.Init(Config::kLoaders);
  }
};

template <typename Config>
__device__ __forceinline__ ForwardShared<Config>& SharedMemory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return *reinterpret_cast<ForwardShared<Config>*>(memory);
}

__device__ __forceinline__ void Arrive(uint64_t& barrier) {
  ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
}

__device__ __forceinline__ void Wait(uint64_t& barrier, uint32_t parity) {
  ptx::MbarrierWait(ptx::SharedAddress(&barrier), parity);
}

// Whether the phase is over, without waiting for it.
__device__ __forceinline__ bool HasPassed(uint64_t& barrier, uint32_t parity) {
  return ptx::MbarrierTest(ptx::SharedAddress(&barrier), parity);
}

// What a thread starts the copies of; kKeys: K and Q, and the notes of tiles.
enum class Loads { kAll, kKeys, kValues };

template <typename Config, Loads kLoads>
class Loader {
 public:
  using Element = typename Config::Element;
  static constexpr bool kKeys = kLoads != Loads::kValues;
  static constexpr bool kValues = kLoads != Loads::kKeys;
  static constexpr uint32_t kRowBytes = Config::kTileWidth * sizeof(Element);
  static constexpr uint32_t kTileBytes = Config::kBlockColumns * kRowBytes;
  static constexpr int kParts = Config::kBlockColumns / kPlanColumns;  // of a tile
  // The first part's classes of all groups.
  static constexpr uint32_t kAllGroups =
      kClassMask * ((1u << Config::kGroups * kGroupBits) - 1) / ((1u << kGroupBits) - 1);
  static constexpr uint32_t kQueryBytes = Config::kGroupRows * kRowBytes;

  __device__ Loader(const ForwardArguments& args, ForwardShared<Config>* shared)
      : args_(args),
        shared_(shared) {}

  __device__ __forceinline__ void Run() {
    LiveList& list = shared_->list;
    for (RingPlace<LiveList::kBatches> batch;; batch.Advance()) {
      Wait(list.full[batch.stage], batch.parity);
      const ItemPlace place = list.places[batch.stage];
      const int count = list.counts[batch.stage];
      for (int i = 0; i < count; ++i) {
        const ListedTile tile = list.tiles[batch.stage][i];
        Load(place, tile);
        if ((tile.bits & kStop) != 0) return;
      }
      Arrive(list.empty[batch.stage]);
    }
  }

 private:
  __device__ __forceinline__ void Load(const ItemPlace& place, const ListedTile& tile) {
    const int stage = stage_.stage;
    const uint32_t parity = stage_.parity;
    if constexpr (kKeys) {
      Wait(shared_->key_empty[stage], parity ^ 1);
      const uint32_t parity_bit = query_parity_ != 0 ? kQueryParity : 0;
      shared_->notes[note_] = {tile.bits | parity_bit, place.row_begin, place.head, place.batch};
    }
    if ((tile.bits & (kNoTile | kStop)) != 0) {
      if constexpr (kKeys) Arrive(shared_->key_full[stage]);
      if constexpr (kValues) {
        Wait(shared_->value_empty[stage], parity ^ 1);
        Arrive(shared_->value_full[stage]);
      }
    } else {
      const int32_t column = tile.tile * Config::kBlockColumns;
      if constexpr (kKeys) LoadKey(place, tile, column, stage);
      if constexpr (kValues) LoadValue(place, tile, column, stage, parity);
    }
    const bool ends = (tile.bits & kLastRun) != 0 && tile.bits >> kCountShift == 1;
    if (ends) {
      query_parity_ ^= (tile.bits & kNoTile) == 0;
      first_tile_ = true;
    }
    stage_.Advance();
    note_ = (note_ + 1) % ForwardShared<Config>::kNotes;
  }

  // Whether any group needs a part of a tile; one whose only part none needs is not listed.
  static __device__ __forceinline__ bool IsLive(uint32_t bits, int part) {
    return kParts == 1 || (bits & kAllGroups << (part * kClassBits)) != 0;
  }

  static __device__ __forceinline__ uint32_t LiveBytes(uint32_t bits) {
    return IsLive(bits, 0) && IsLive(bits, kParts - 1) ? kTileBytes : kTileBytes / kParts;
  }

  __device__ __forceinline__ void LoadKey(const ItemPlace& place,
                                          const ListedTile& tile,
                                          int32_t column,
                                          int stage) {
    bool partial = false;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) partial |= ClassOf(tile.bits, group, part) > kFull;
    }
    constexpr uint32_t kBoundBytes = Config::kBlockColumns * sizeof(int4);
    const uint32_t full = ptx::SharedAddress(&shared_->key_full[stage]);
    ptx::MbarrierArriveExpect(full, LiveBytes(tile.bits) + (partial ? kBoundBytes : 0));
    if (partial) {
      ptx::BulkLoad(ptx::SharedAddress(shared_->bounds[note_]),
                    args_.plan.bounds +
                        int64_t{place.mask} * args_.plan.num_column_tiles * kPlanColumns + column,
                    kBoundBytes,
                    full);
    }
    LoadParts(tile.bits, shared_->key[stage], args_.key, place, column, full);
    if (first_tile_) LoadQuery(place);
    first_tile_ = false;
  }

  __device__ __forceinline__ void LoadValue(const ItemPlace& place,
                                            const ListedTile& tile,
                                            int32_t column,
                                            int stage,
                                            uint32_t parity) {
    const uint32_t full = ptx::SharedAddress(&shared_->value_full[stage]);
    Wait(shared_->value_empty[stage], parity ^ 1);
    ptx::MbarrierArriveExpect(full, LiveBytes(tile.bits));
    LoadParts(tile.bits, shared_->value[stage], args_.value, place, column, full);
  }

  // A tile of K or V, or the one part of it that is needed.
  __device__ __forceinline__ static void LoadParts(uint32_t bits,
                                                   Element* shared,
                                                   const KeyMaps& maps,
                                                   const ItemPlace& place,
                                                   int32_t column,
                                                   uint32_t barrier) {
    const int part = IsLive(bits, 0) ? 0 : kParts - 1;
    const bool whole = IsLive(bits, kParts - 1 - part);
    LoadBoxes<Config::kBlockColumns>(shared + part * kPlanColumns * kSwizzleColumns,
                                     whole ? maps.tile : maps.part,
                                     place.key_head,
                                     column + part * kPlanColumns,
                                     place.batch,
                                     barrier);
  }

  __device__ __forceinline__ void LoadQuery(const ItemPlace& place) {
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const uint32_t full = ptx::SharedAddress(&shared_->query_full[group]);
      Wait(shared_->query_empty[group], query_parity_ ^ 1);
      ptx::MbarrierArriveExpect(full, kQueryBytes);
      LoadBoxes<Config::kGroupRows>(shared_->query[group],
                                    args_.query,
                                    place.head,
                                    place.row_begin + group * Config::kGroupRows,
                                    place.batch,
                                    full);
    }
  }

  // The boxes of a map, for a tile of kRows.
  template <int kRows>
  __device__ __forceinline__ static void LoadBoxes(Element* shared,
                                                   const CUtensorMap& map,
                                                   int32_t head,
                                                   int32_t row,
                                                   int32_t batch,
                                                   uint32_t barrier) {
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::TmaLoad4d(ptx::SharedAddress(shared) + box * kRows * kSwizzleBytes,
                     &map,
                     box * kSwizzleColumns,
                     head,
                     row,
                     batch,
                     barrier);
    }
  }

  const ForwardArguments& args_;
  ForwardShared<Config>* shared_;
  RingPlace<Config::kStages> stage_;
  int note_ = 0;
  uint32_t query_parity_ = 0;
  bool first_tile_ = true;  // of an item
};

}  // namespace flashmask::sm90a
