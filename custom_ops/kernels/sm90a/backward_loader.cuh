#pragma once

// The thread of the sm90a backward that has tiles loaded; see backward.cuh.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_shared.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// One thread of the producer: what the list says to shared memory.
template <typename Config, typename Shared = BackwardShared<Config>>
class BackwardLoader {
 public:
  using Element = typename Config::Element;
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ BackwardLoader(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared) {}

  __device__ __forceinline__ void Run() {
    uint32_t item_parity = 0;
    while (true) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->entry_full[place_.stage]), place_.parity);
      const ListEntry& entry = shared_->entries[place_.stage];
      if ((entry.step.flags & kFirstStep) != 0) {
        if (!BeginItem(entry, item_parity)) return;
        item_parity ^= 1;
      }
      LoadQuery(entry);
      LoadGradOut(entry);
      ptx::MbarrierArrive(ptx::SharedAddress(&shared_->entry_empty[place_.stage]));
      place_.Advance();
    }
  }

 private:
  static constexpr uint32_t kElementBytes = 2;
  static constexpr uint32_t kRowTileBytes = Shared::kRowTile * kElementBytes;
  static constexpr uint32_t kKeyTileBytes = Shared::kTile * kElementBytes;
  static constexpr uint32_t kTermBytes = kRows * sizeof(float);
  static constexpr uint32_t kBoundsBytes = Config::kKeys * sizeof(int4);

  // False for the entry behind the last item.
  __device__ __forceinline__ bool BeginItem(const ListEntry& entry, uint32_t parity) {
    const bool exists = entry.item.key_begin != kNoMoreItems;
    const uint32_t key_full = ptx::SharedAddress(&shared_->key_full);
    if (exists) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->value_empty), parity ^ 1);
      LoadKeyTile(&args_.value,
                  shared_->value,
                  entry.item,
                  kSwizzleColumns,
                  ptx::SharedAddress(&shared_->value_full));
    }
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->key_empty), parity ^ 1);
    shared_->items[parity] = entry.item;
    if (exists) {
      LoadKeyTile(&args_.key, shared_->key, entry.item, Config::kGroupColumns, key_full);
    } else {
      ptx::MbarrierArrive(key_full);
    }
    return exists;
  }

  __device__ __forceinline__ void LoadKeyTile(const CUtensorMap* map,
                                              const Element* tile,
                                              const ItemInfo& item,
                                              int box_columns,
                                              uint32_t full) {
    ptx::MbarrierArriveExpect(full, kKeyTileBytes);
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + box * (kSwizzleColumns * Config::kKeys)),
                     map,
                     box * box_columns,
                     item.head_k,
                     item.key_begin,
                     item.batch,
                     full);
    }
  }

  __device__ __forceinline__ void LoadQuery(const ListEntry& entry) {
    const int stage = query_.stage;
    const bool dead = (entry.step.flags & kDeadStep) != 0;
    const bool partial = (entry.step.flags & kPartialStep) != 0 && !dead;
    const int32_t row_begin = entry.step.row_begin;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_empty[stage]), query_.parity ^ 1);
    shared_->steps[stage] = entry.step;
    if (dead) HideRows(stage);
    const uint32_t full = ptx::SharedAddress(&shared_->query_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes + (partial ? kBoundsBytes : 0));
    LoadRowTile(&args_.query, shared_->query[stage], entry, dead ? NoRow() : row_begin, full);
    ptx::BulkLoad(ptx::SharedAddress(shared_->lse_log2[stage]),
                  args_.terms.lse_log2 + TermOffset(entry),
                  kTermBytes,
                  full);
    if (partial) {
      const int64_t columns = int64_t{args_.plan.num_column_tiles} * kPlanColumns;
      ptx::BulkLoad(ptx::SharedAddress(shared_->bounds[stage]),
                    args_.plan.bounds + entry.mask * columns + entry.item.key_begin,
                    kBoundsBytes,
                    full);
    }
    query_.Advance();
  }

  // Past the last: zeros.
  __device__ __forceinline__ int32_t NoRow() const {
    return static_cast<int32_t>(args_.terms.padded_rows);
  }

  // A dead step stands for rows that the keys may well see, where another share has all live ones:
  // it hides them from all keys, and what is loaded are zeros, since 0 times NaN is NaN.
  __device__ __forceinline__ void HideRows(int stage) {
    for (int key = 0; key < Config::kKeys; ++key) {
      shared_->bounds[stage][key] = make_int4(0, args_.seqlen_q, 0, 0);
    }
    ptx::FenceProxyAsync();
  }

  __device__ __forceinline__ void LoadGradOut(const ListEntry& entry) {
    const bool dead = (entry.step.flags & kDeadStep) != 0;
    const int stage = grad_out_.stage;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_out_empty[stage]), grad_out_.parity ^ 1);
    const uint32_t full = ptx::SharedAddress(&shared_->grad_out_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes);
    LoadRowTile(&args_.grad_out,
                shared_->grad_out[stage],
                entry,
                dead ? NoRow() : entry.step.row_begin + args_.grad_out_row_shift,
                full);
    ptx::BulkLoad(ptx::SharedAddress(shared_->delta[stage]),
                  args_.terms.delta + TermOffset(entry),
                  kTermBytes,
                  full);
    grad_out_.Advance();
  }

  __device__ __forceinline__ int64_t TermOffset(const ListEntry& entry) const {
    const int32_t head_of_all = entry.item.batch * args_.num_heads + entry.head;
    return int64_t{head_of_all} * args_.terms.padded_rows + entry.step.row_begin;
  }

  __device__ __forceinline__ void LoadRowTile(const CUtensorMap* map,
                                              const Element* tile,
                                              const ListEntry& entry,
                                              int32_t row,
                                              uint32_t full) {
#pragma unroll
    for (int column = 0; column < Config::kHeadDim; column += kSwizzleColumns) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + column * kRows),
                     map,
                     column,
                     entry.head,
                     row,
                     entry.item.batch,
                     full);
    }
  }

  const BackwardArguments& args_;
  Shared* shared_;
  RingPlace<kListEntries> place_;
  RingPlace<Config::kQueryStages> query_;
  RingPlace<Config::kGradOutStages> grad_out_;
};

}  // namespace flashmask::sm90a
