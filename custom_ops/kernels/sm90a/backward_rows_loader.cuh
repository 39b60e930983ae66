#pragma once

// The producer warps of the kernel in backward_rows.cuh: what they share with those that compute,
// who lists live tiles, and who starts the copies.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90a/backward_wide_config.h"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/ring_place.cuh"
#include "kernels/sm90a/tile_config.h"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// What the groups must know of a tile.
struct alignas(16) WideNote {
  uint32_t bits;      // see live_list.cuh
  int32_t row_begin;  // of the item
  int32_t head;
  int32_t batch;
};

template <typename Config>
struct WideRowsShared {
  using Element = typename Config::Element;
  // A note is written one tile ahead of the stages of K, and may still be read when the stage of
  // its tile has been given back.
  static constexpr int kNotes = 8;
  static_assert(kNotes >= Config::kKeyStages + 2, "a note must outlive its stage of K");

  alignas(1024) Element query[Config::kGroups][Config::kTile];
  alignas(1024) Element grad_out[Config::kGroups][Config::kTile];
  alignas(1024) Element key[Config::kKeyStages][Config::kTile];
  alignas(1024) Element value[Config::kValueStages][Config::kTile];
  alignas(16) int4 bounds[Config::kKeyStages][Config::kBlockColumns];
  WideNote notes[kNotes];
  LiveList list;
  uint64_t rows_full[Config::kGroups];
  uint64_t rows_empty[Config::kGroups];
  uint64_t note_full[kNotes];
  uint64_t key_full[Config::kKeyStages];
  uint64_t key_empty[Config::kKeyStages];
  uint64_t value_full[Config::kValueStages];
  uint64_t value_empty[Config::kValueStages];

  __device__ void Init() {
    constexpr int kGroupArrivals = kWarpgroup / kWarp * kWarpArrivals;
    const auto init = [](uint64_t& full, uint64_t& empty, int readers) {
      ptx::MbarrierInit(ptx::SharedAddress(&full), 1);
      ptx::MbarrierInit(ptx::SharedAddress(&empty), readers);
    };
    for (int i = 0; i < Config::kGroups; ++i) init(rows_full[i], rows_empty[i], kGroupArrivals);
    for (int i = 0; i < kNotes; ++i) ptx::MbarrierInit(ptx::SharedAddress(&note_full[i]), 1);
    for (int i = 0; i < Config::kKeyStages; ++i) {
      init(key_full[i], key_empty[i], Config::kGroups * kGroupArrivals);
    }
    for (int i = 0; i < Config::kValueStages; ++i) {
      init(value_full[i], value_empty[i], Config::kGroups * kGroupArrivals);
    }
    list.Init(1);
  }
};

template <typename Config>
__device__ __forceinline__ WideRowsShared<Config>& WideRowsMemory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return *reinterpret_cast<WideRowsShared<Config>*>(memory);
}

// The thread that starts the copies.
template <typename Config>
class WideRowLoader {
 public:
  using Element = typename Config::Element;
  using Shared = WideRowsShared<Config>;
  static constexpr uint32_t kTileBytes = Config::kTile * sizeof(Element);

  __device__ __forceinline__ WideRowLoader(const WideBackwardArguments& args, Shared* shared)
      : args_(args.both),
        shared_(shared) {}

  __device__ __forceinline__ void Run() {
    LiveList& list = shared_->list;
    for (RingPlace<LiveList::kBatches> batch;; batch.Advance()) {
      Wait(list.full[batch.stage], batch.parity);
      const ItemPlace place = list.places[batch.stage];
      const int count = list.counts[batch.stage];
      for (int i = 0; i < count; ++i) {
        const ListedTile tile = list.tiles[batch.stage][i];
        WriteNote(place, tile);
        if ((tile.bits & kStop) != 0) return;
        Load(place, tile);
      }
      Arrive(list.empty[batch.stage]);
    }
  }

 private:
  static __device__ __forceinline__ void Wait(const uint64_t& barrier, uint32_t parity) {
    ptx::MbarrierWait(ptx::SharedAddress(&barrier), parity);
  }
  static __device__ __forceinline__ void Arrive(const uint64_t& barrier) {
    ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
  }

  __device__ __forceinline__ void WriteNote(const ItemPlace& place, const ListedTile& tile) {
    const uint32_t parity_bit = rows_parity_ != 0 ? kQueryParity : 0;
    shared_->notes[note_] = {tile.bits | parity_bit, place.row_begin, place.head, place.batch};
    Arrive(shared_->note_full[note_]);
    note_ = (note_ + 1) % Shared::kNotes;
  }

  __device__ __forceinline__ void Load(const ItemPlace& place, const ListedTile& tile) {
    const bool exists = (tile.bits & kNoTile) == 0;
    const uint64_t& key_full = shared_->key_full[key_.stage];
    const uint64_t& value_full = shared_->value_full[value_.stage];
    const int32_t column = tile.tile * Config::kBlockColumns;
    Wait(shared_->key_empty[key_.stage], key_.parity ^ 1);
    if (exists) {
      LoadKey(place, tile, column);
    } else {
      Arrive(key_full);
    }
    if (exists && first_tile_) LoadRows(place);
    Wait(shared_->value_empty[value_.stage], value_.parity ^ 1);
    if (exists) {
      const uint32_t full = ptx::SharedAddress(&value_full);
      ptx::MbarrierArriveExpect(full, kTileBytes);
      LoadTile(shared_->value[value_.stage],
               args_.value,
               place.key_head,
               column,
               place.batch,
               full);
    } else {
      Arrive(value_full);
    }
    const bool ends = (tile.bits & kLastRun) != 0 && tile.bits >> kCountShift == 1;
    if (ends && exists) rows_parity_ ^= 1;
    first_tile_ = ends;
    key_.Advance();
    value_.Advance();
  }

  __device__ __forceinline__ void LoadRows(const ItemPlace& place) {
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const uint32_t full = ptx::SharedAddress(&shared_->rows_full[group]);
      const int32_t row = place.row_begin + group * Config::kGroupRows;
      Wait(shared_->rows_empty[group], rows_parity_ ^ 1);
      ptx::MbarrierArriveExpect(full, 2 * kTileBytes);
      LoadTile(shared_->query[group], args_.query, place.head, row, place.batch, full);
      LoadTile(shared_->grad_out[group],
               args_.grad_out,
               place.head,
               row + args_.grad_out_row_shift,
               place.batch,
               full);
    }
  }

  __device__ __forceinline__ void LoadKey(const ItemPlace& place,
                                          const ListedTile& tile,
                                          int32_t column) {
    bool partial = false;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      partial |= ClassOf(tile.bits, group) > kFull;
    }
    constexpr uint32_t kBoundBytes = Config::kBlockColumns * sizeof(int4);
    const uint32_t full = ptx::SharedAddress(&shared_->key_full[key_.stage]);
    ptx::MbarrierArriveExpect(full, kTileBytes + (partial ? kBoundBytes : 0));
    if (partial) {
      ptx::BulkLoad(ptx::SharedAddress(shared_->bounds[key_.stage]),
                    args_.plan.bounds +
                        int64_t{place.mask} * args_.plan.num_column_tiles * kPlanColumns + column,
                    kBoundBytes,
                    full);
    }
    LoadTile(shared_->key[key_.stage], args_.key, place.key_head, column, place.batch, full);
  }

  static __device__ __forceinline__ void LoadTile(const Element* tile,
                                                  const CUtensorMap& map,
                                                  int32_t head,
                                                  int32_t row,
                                                  int32_t batch,
                                                  uint32_t barrier) {
#pragma unroll
    for (int column = 0; column < Config::kHeadDim; column += kSwizzleColumns) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + column * kWideTileRows),
                     &map,
                     column,
                     head,
                     row,
                     batch,
                     barrier);
    }
  }

  const BackwardArguments& args_;
  Shared* shared_;
  RingPlace<Config::kKeyStages> key_;
  RingPlace<Config::kValueStages> value_;
  int note_ = 0;
  uint32_t rows_parity_ = 0;
  bool first_tile_ = true;  // of an item
};

}  // namespace flashmask::sm90a
