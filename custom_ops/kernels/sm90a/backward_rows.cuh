#pragma once

// Gradient of query for wide head dims on sm_90a; see backward_wide_config.h for why there is a
// kernel of its own. It resembles the forward (forward.cuh), and takes items and finds live tiles
// as that does.
//
// A work item is 128 query rows of a head. A block walks their live tiles of 64 keys.
//
// Roles: warpgroup 0 loads: its warp 1 finds live tiles (live_list.cuh), a thread of its warp 0
// starts the copies. The others own 64 rows each. A tile i:
//   dQ += dS K of the live tile before i, S = Q K^T and dP = dO V^T of tile i, one behind the other
//   and in turns: while one group has the tensor cores, the other computes
//   P = exp2(S - lse), dS = P (dP - delta), masked where the tile is partial for the group's rows
// with S, dP, dS and dQ in registers. A group skips tiles that are dead for its rows. The two
// groups read K and V in different order, since there is little room for V: one starts with S, the
// other with dP, so that a tile of V is needed for a shorter time.
//
// Shared memory: query and grad_out, 64 rows a group; stages of K, with the bounds of its columns,
// and of V; notes of more tiles than that, so that a group learns of the next tile before it is
// there.
//
// Barriers: rows_full/rows_empty a group and item; note_full a note; key_full/key_empty and
// value_full/value_empty a stage. A full one expects bytes from the copy engine, a note's none; an
// empty one counts a lane of each warp. Named barriers: see NamedTurn.

#include "core/params.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/work_order.cuh"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_products.cuh"
#include "kernels/sm90a/backward_wide_config.h"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/ring_place.cuh"
#include "kernels/sm90a/softmax.cuh"
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

// The warp that takes work items and lists their live tiles.
template <typename Config>
__device__ __forceinline__ void ListRowItems(const WideBackwardArguments& args, LiveList* list) {
  const BackwardArguments& both = args.both;
  ListWriter<Config> writer(both.plan, both.seqlen_q, list);
  for (;;) {
    int32_t ticket = 0;
    if (threadIdx.x % kWarp == 0) ticket = atomicAdd(args.next_row_item, 1);
    ticket = __shfl_sync(0xffffffffu, ticket, 0);
    if (ticket >= args.num_row_items) break;
    const WorkItem item = args.row_order.Item(ticket,
                                              both.plan,
                                              both.num_heads,
                                              both.heads_per_mask,
                                              both.num_heads_mask);
    writer.AddItem({static_cast<int32_t>(item.batch),
                    static_cast<int32_t>(item.head),
                    static_cast<int32_t>(item.mask),
                    static_cast<int32_t>(item.row_block) * Config::kBlockRows});
  }
  writer.Stop();
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
    const int32_t key_head = place.head / args_.heads_per_key;
    Wait(shared_->key_empty[key_.stage], key_.parity ^ 1);
    if (exists) {
      LoadKey(place, tile, key_head, column);
    } else {
      Arrive(key_full);
    }
    if (exists && first_tile_) LoadRows(place);
    Wait(shared_->value_empty[value_.stage], value_.parity ^ 1);
    if (exists) {
      const uint32_t full = ptx::SharedAddress(&value_full);
      ptx::MbarrierArriveExpect(full, kTileBytes);
      LoadTile(shared_->value[value_.stage], args_.value, key_head, column, place.batch, full);
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
                                          int32_t key_head,
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
    LoadTile(shared_->key[key_.stage], args_.key, key_head, column, place.batch, full);
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

// A warpgroup that computes 64 rows of each work item.
template <typename Config, int kGroup>
class WideRowGroup {
 public:
  using Element = typename Config::Element;
  using Shared = WideRowsShared<Config>;
  static constexpr int kHeadDim = Config::kHeadDim;

  explicit __device__ __forceinline__ WideRowGroup(const WideBackwardArguments& args)
      : args_(args.both) {}

  __device__ __forceinline__ void Run() {
    if constexpr (kGroup == 1) PassTurn();
    bool first = true;
    for (;;) {
      Wait(Memory().note_full[tile_ % Shared::kNotes], tile_ / Shared::kNotes % 2);
      const uint32_t bits = Note().bits;
      if ((bits & kStop) != 0) break;
      if (first) Begin();
      first = (bits & kLastRun) != 0 && bits >> kCountShift == 1;
      const bool ends = first && (bits & kNoTile) == 0;
      const uint32_t row_class = ClassOf(bits, kGroup);
      if (row_class == kSkip) {
        Skip(ends);
      } else {
        Attend(ends, row_class);
      }
      if (first) Finish();
      ++tile_;
    }
    if constexpr (kGroup == 0) TakeTurn();  // takes what was passed on last
  }

 private:
  static __device__ __forceinline__ void Wait(const uint64_t& barrier, uint32_t parity) {
    ptx::MbarrierWait(ptx::SharedAddress(&barrier), parity);
  }

  // Once all lanes have read what the barrier gives away.
  static __device__ __forceinline__ void Release(const uint64_t& barrier) {
    __syncwarp();
    if (kEveryLaneArrives || ptx::ElectOne()) {
      ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
    }
  }

  static __device__ __forceinline__ void TakeTurn() {
    ptx::NamedBarrierSync(kWideTurn + kGroup, Config::kGroups * kWarpgroup);
  }
  static __device__ __forceinline__ void PassTurn() {
    ptx::NamedBarrierArrive(kWideTurn + (kGroup ^ 1), Config::kGroups * kWarpgroup);
  }

  static __device__ __forceinline__ uint32_t KeyStage(uint32_t tile) {
    return tile % Config::kKeyStages;
  }
  __device__ __forceinline__ uint32_t ValueStage() const { return tile_ % Config::kValueStages; }
  __device__ __forceinline__ const WideNote& Note() const {
    return Memory().notes[tile_ % Shared::kNotes];
  }

  __device__ __forceinline__ void Begin() {
    const WideNote& note = Note();
    const int64_t head_of_all = int64_t{note.batch} * args_.num_heads + note.head;
    const int64_t row = head_of_all * args_.terms.padded_rows + note.row_begin +
                        kGroup * Config::kGroupRows + FragmentRow();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      lse_log2_[r] = args_.terms.lse_log2[row + 8 * r];
      delta_[r] = args_.terms.delta[row + 8 * r];
    }
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) sums_[i] = 0.0f;
    if ((note.bits & kNoTile) == 0) {
      Wait(Memory().rows_full[kGroup], (note.bits & kQueryParity) != 0 ? 1 : 0);
      LoadHeld<kHeadDim>(ptx::SharedAddress(Memory().query[kGroup]),
                         ThreadIndex() % kWarpgroup,
                         held_);
    }
  }

  // A tile that is dead for these rows. The waits keep a second arrival out of this phase; the
  // stage of K that is still held is given back, lest the loader wait for it while this group waits
  // for the loader.
  __device__ __forceinline__ void Skip(bool ends) {
    Drain(tile_ - 1);
    TakeTurn();
    PassTurn();
    if (ends) Release(Memory().rows_empty[kGroup]);
    Wait(Memory().key_full[KeyStage(tile_)], tile_ / Config::kKeyStages % 2);
    Release(Memory().key_empty[KeyStage(tile_)]);
    Wait(Memory().value_full[ValueStage()], tile_ / Config::kValueStages % 2);
    Release(Memory().value_empty[ValueStage()]);
  }

  __device__ __forceinline__ void Attend(bool ends, uint32_t row_class) {
    float scores[kWideCells];
    float grads[kWideCells];
    if (holds_cells_) {
      MultiplyRows<true>(scores, grads);
    } else {
      MultiplyRows<false>(scores, grads);
    }
    if (ends) Release(Memory().rows_empty[kGroup]);
    if (row_class == kFull) {
      FormCells<true>(scores, grads, row_class);
    } else {
      FormCells<false>(scores, grads, row_class);
    }
    holds_cells_ = true;
  }

  // Both products of the rows with the tile, behind the sum that is held back. Once that is done,
  // while the first product is under way, the second one takes its operand's registers.
  template <bool kHoldsCells>
  __device__ __forceinline__ void MultiplyRows(float (&scores)[kWideCells],
                                               float (&grads)[kWideCells]) {
    TakeTurn();
    if constexpr (kHoldsCells) StartSum(tile_ - 1);
    if constexpr (kGroup == 0) {
      StartScores(scores);
    } else {
      StartGrads(grads);
    }
    if constexpr (kHoldsCells) {
      ptx::WgmmaWait<1>();
      ptx::WgmmaPin(sums_);
      Release(Memory().key_empty[KeyStage(tile_ - 1)]);
    }
    if constexpr (kGroup == 0) {
      StartGrads(grads);
    } else {
      StartScores(scores);
    }
    PassTurn();
    ptx::WgmmaWait<kGroup>();  // for dP: of the second group's two products the first
    Release(Memory().value_empty[ValueStage()]);
    if constexpr (kGroup != 0) ptx::WgmmaWait<0>();
    ptx::WgmmaPin(scores);
    ptx::WgmmaPin(grads);
  }

  __device__ __forceinline__ void StartScores(float (&scores)[kWideCells]) {
    Wait(Memory().key_full[KeyStage(tile_)], tile_ / Config::kKeyStages % 2);
    ptx::WgmmaDefine(scores);
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim>(held_,
                                     ptx::SharedAddress(Memory().query[kGroup]),
                                     ptx::SharedAddress(Memory().key[KeyStage(tile_)]),
                                     scores);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void StartGrads(float (&grads)[kWideCells]) {
    Wait(Memory().value_full[ValueStage()], tile_ / Config::kValueStages % 2);
    ptx::WgmmaDefine(grads);
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim>(ptx::SharedAddress(Memory().grad_out[kGroup]),
                                     ptx::SharedAddress(Memory().value[ValueStage()]),
                                     grads);
    ptx::WgmmaCommit();
  }

  // What is held back is of `tile`.
  __device__ __forceinline__ void StartSum(uint32_t tile) {
    ptx::WgmmaFence();
    AddTile<Element, kHeadDim>(cells_,
                               ptx::SharedAddress(Memory().key[KeyStage(tile)]),
                               true,
                               sums_);
    ptx::WgmmaCommit();
  }

  // Adds what is held back.
  __device__ __forceinline__ void Drain(uint32_t tile) {
    if (!holds_cells_) return;
    holds_cells_ = false;
    StartSum(tile);
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(sums_);
    Release(Memory().key_empty[KeyStage(tile)]);
  }

  // Masked cells, and where a tile is partial all whose weight is 0, get 0 whatever their score and
  // its gradient are, infinite or no numbers.
  template <bool kFullTile>
  __device__ __forceinline__ void FormCells(float (&scores)[kWideCells],
                                            const float (&grads)[kWideCells],
                                            uint32_t row_class) {
    const float scale = args_.scale_log2;
#pragma unroll
    for (int n = 0; n < kWideCells / 4; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float* s = scores + 4 * n + 2 * r;
        s[0] = Exp2(fmaf(s[0], scale, -lse_log2_[r]));
        s[1] = Exp2(fmaf(s[1], scale, -lse_log2_[r]));
      }
    }
    if constexpr (!kFullTile) {
      constexpr bool kHalfLines = false;
      const int32_t row = Note().row_begin + kGroup * Config::kGroupRows + FragmentRow();
      MaskScores<kHalfLines>(scores, Memory().bounds[KeyStage(tile_)], row, row_class, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < kWideCells / 2; ++i) {
      const float delta = delta_[i % 2];
      float x = scores[2 * i] * (grads[2 * i] - delta);
      float y = scores[2 * i + 1] * (grads[2 * i + 1] - delta);
      if constexpr (!kFullTile) {
        x = scores[2 * i] == 0.0f ? 0.0f : x;
        y = scores[2 * i + 1] == 0.0f ? 0.0f : y;
      }
      cells_[i] = Pack<Element>(x, y);
    }
  }

  __device__ __forceinline__ void Finish() {
    Drain(tile_);
    const WideNote& note = Note();
    Element* to = static_cast<Element*>(args_.grad_query.data) +
                  note.batch * args_.grad_query.batch_stride +
                  note.head * args_.grad_query.head_stride;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = note.row_begin + kGroup * Config::kGroupRows + FragmentRow() + 8 * r;
      StoreRow<Element, kHeadDim>(sums_,
                                  r,
                                  args_.softmax_scale,
                                  to + row * args_.grad_query.row_stride,
                                  row < args_.seqlen_q ? args_.head_dim : 0);
    }
  }

  // Not a member, which would take registers.
  static __device__ __forceinline__ Shared& Memory() { return WideRowsMemory<Config>(); }

  const BackwardArguments& args_;
  uint32_t tile_ = 0;  // over all items
  float lse_log2_[2];
  float delta_[2];
  float sums_[kHeadDim / 2];
  uint32_t cells_[kWideCells / 2];
  uint32_t held_[Config::kHeld][4];
  bool holds_cells_ = false;  // of the tile before: cells_ are not yet in sums_
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WideRowsKernel(const __grid_constant__ WideBackwardArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WideRowsShared<Config>* shared = &WideRowsMemory<Config>();
  if (threadIdx.x == 0) {
    shared->Init();
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kWarpgroup / kWarp) {
    ptx::LowerRegisters<Config::kProducerRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) WideRowLoader<Config>(args, shared).Run();
    } else if (warp == 1) {
      ListRowItems<Config>(args, &shared->list);
    }
  } else {
    ptx::RaiseRegisters<Config::kConsumerRegisters>();
    if (warp < 2 * kWarpgroup / kWarp) {
      WideRowGroup<Config, 0>(args).Run();
    } else {
      WideRowGroup<Config, 1>(args).Run();
    }
  }
#endif
}

}  // namespace flashmask::sm90a
