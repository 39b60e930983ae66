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

#include "kernels/common/device_math.cuh"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/thread_index.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_rows_loader.cuh"
#include "kernels/sm90a/backward_wide_config.h"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/products.cuh"
#include "kernels/sm90a/softmax.cuh"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

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
                         ptx::ThreadIndex() % kWarpgroup,
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
    MultiplyTiles<Element, kHeadDim, Config::kHeld>(
        held_,
        ptx::SharedAddress(Memory().query[kGroup]),
        ptx::SharedAddress(Memory().key[KeyStage(tile_)]),
        scores);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void StartGrads(float (&grads)[kWideCells]) {
    Wait(Memory().value_full[ValueStage()], tile_ / Config::kValueStages % 2);
    ptx::WgmmaDefine(grads);
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim>(nullptr,
                                     ptx::SharedAddress(Memory().grad_out[kGroup]),
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
        s[0] = ptx::Exp2(fmaf(s[0], scale, -lse_log2_[r]));
        s[1] = ptx::Exp2(fmaf(s[1], scale, -lse_log2_[r]));
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
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kWarpgroup / kWarp) {
    ptx::LowerRegisters<Config::kProducerRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) WideRowLoader<Config>(args, shared).Run();
    } else if (warp == 1) {
      ListItems<Config>(args.both,
                        args.row_order,
                        args.next_row_item,
                        args.num_row_items,
                        &shared->list);
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
