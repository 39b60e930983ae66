#pragma once

// Forward attention for Hopper: wgmma, the copy engine, warpgroups with roles.
//
// A block stays on its SM and takes work items (192 query rows of a head, or 128) off a counter,
// longest first within sections of heads whose K and V fit the L2. It walks the live tiles of 64 or
// 128 keys; tile_config.h has the numbers.
//
// Roles: warpgroup 0 loads: its warp 1 finds live tiles (live_list.cuh) ahead of time, a thread of
// its warp 0 starts the copies, but for those of V where one of its warp 2 does (kLoaders). The
// others compute 64 rows each: S = Q K^T, softmax, O += P V with S, P and O in registers. While one
// waits for its softmax the others keep the tensor cores busy. A group skips tiles that are dead
// for its own rows, and masks those that are partial for them; all else runs free of mask code.
//
// Shared memory: Q (64 rows a group), kStages tiles of K and of V, all swizzled; column bounds and
// notes of more tiles than that, so that a stage of K may be filled again while they are read.
//
// Barriers: query_full/query_empty a group and item; key_full/key_empty and value_full/value_empty
// a stage. A full one expects bytes from the copy engine; an empty one counts a lane of each warp.
//
// Masked scores are -inf. The running maximum starts at a finite number, so a row without any key
// meets no inf - inf: its sum stays 0, and it gets out 0 and lse -inf.
// Source: FlashAttention-3, arXiv 2407.08608; FlashMask, arXiv 2410.01359.

#include "kernels/common/device_math.cuh"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/not_hoisted.h"
#include "kernels/ptx/thread_index.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/forward_loader.cuh"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/products.cuh"
#include "kernels/sm90a/softmax.cuh"
#include "kernels/sm90a/tile_config.h"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// A warpgroup that computes 64 rows of each work item.
template <typename Config, bool kHalfLines>
class RowGroup {
 public:
  using Element = typename Config::Element;
  using Shared = ForwardShared<Config>;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kColumns = Config::kBlockColumns;

  explicit __device__ RowGroup(const ForwardArguments& args)
      : args_(args),
        group_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarpgroup - 1, 0)) {
    if constexpr (ptx::kMustWriteOperands) {
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) weights_[i] = 0;
    }
  }

  __device__ __forceinline__ void Run() {
    if (group_ == Config::kGroups - 1) PassTurn();
    for (;;) {
      Wait(Memory().key_full[Stage(tile_)], Parity(tile_));
      const uint32_t bits = Note().bits;
      if ((bits & kStop) != 0) break;
      if ((bits & kFirstRun) != 0) Begin(bits);
      const uint32_t row_class = ClassOf(bits, group_);
      const int32_t row = Note().row_begin + group_ * Config::kGroupRows + FragmentRow();
      const bool ends = (bits & (kLastRun | kNoTile)) == kLastRun;
      for (uint32_t left = bits >> kCountShift; left > 0; --left) {
        const bool releases_query = ends && left == 1;
        if (row_class == kFull) {
          Attend<true>(releases_query, row, row_class);
        } else if (row_class == kSkip) {
          Skip(releases_query);
        } else {
          Attend<false>(releases_query, row, row_class);
        }
        if (left == 1 && (bits & kLastRun) != 0) Finish();
        ++tile_;
        if (left > 1) Wait(Memory().key_full[Stage(tile_)], Parity(tile_));
      }
    }
    if (group_ == 0) TakeTurn();  // takes what the last group passed on
  }

 private:
  __device__ __forceinline__ void Begin(uint32_t bits) {
    if ((bits & kNoTile) == 0) {
      Wait(Memory().query_full[group_], (bits & kQueryParity) != 0 ? 1 : 0);
      if constexpr (kHeld > 0) {
        LoadHeld<kHeadDim>(ptx::SharedAddress(Memory().query[group_]),
                           ptx::ThreadIndex() % kWarpgroup,
                           held_);
      }
    }
    softmax_.Reset();
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) out_sum_[i] = 0.0f;
  }

  // A tile that is dead for these rows. The wait for V keeps a second arrival out of this phase;
  // the stage of V that is still held is given back, lest the loader wait for it while this group
  // waits for the loader.
  __device__ __forceinline__ void Skip(bool releases_query) {
    Drain();
    TakeTurn();
    PassTurn();
    if (releases_query) Release(Memory().query_empty[group_]);
    Release(Memory().key_empty[Stage(tile_)]);
    Wait(Memory().value_full[Stage(tile_)], Parity(tile_));
    Release(Memory().value_empty[Stage(tile_)]);
  }

  // `row` is that of this thread's first score, `row_class` what the run is to this group.
  template <bool kFullTile>
  __device__ __forceinline__ void Attend(bool releases_query, int32_t row, uint32_t row_class) {
    if constexpr (!Config::kOverlap) {
      AttendAlone<kFullTile>(releases_query, row, row_class);
    } else if (holds_weights_) {
      AttendOverlapped<kFullTile, true>(releases_query, row, row_class);
    } else {
      AttendOverlapped<kFullTile, false>(releases_query, row, row_class);
    }
  }

  // The products of a tile one after the other.
  template <bool kFullTile>
  __device__ __forceinline__ void AttendAlone(bool releases_query,
                                              int32_t row,
                                              uint32_t row_class) {
    float scores[kColumns / 2];
    TakeTurn();
    StartScores(scores);
    PassTurn();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(scores);
    ScoresToWeights<kFullTile>(scores, releases_query, row, row_class);
    if (softmax_.HasRisen()) softmax_.Rescale(out_sum_);
    PackWeights(scores);
    StartOutput(tile_);
    FinishOutput(tile_);
  }

  // Q K^T of this tile beside P V of the one before.
  template <bool kFullTile, bool kHoldsWeights>
  __device__ __forceinline__ void AttendOverlapped(bool releases_query,
                                                   int32_t row,
                                                   uint32_t row_class) {
    float scores[kColumns / 2];
    StartScores(scores);
    if constexpr (kHoldsWeights) StartOutput(held_tile_);
    ptx::WgmmaWait<kHoldsWeights ? 1 : 0>();
    ptx::WgmmaPin(scores);
    ScoresToWeights<kFullTile>(scores, releases_query, row, row_class);
    if constexpr (kHoldsWeights) {
      ptx::StayBehind(tile_ == kNoTileOfAll);  // or ptxas waits for P V before the exponentials
      FinishOutput(held_tile_);
    }
    if (softmax_.HasRisen()) softmax_.Rescale(out_sum_);
    PackWeights(scores);
    held_tile_ = tile_;
    holds_weights_ = true;
  }

  // Adds the weights that are held back.
  __device__ __forceinline__ void Drain() {
    if constexpr (Config::kOverlap) {
      if (!holds_weights_) return;
      holds_weights_ = false;
      StartOutput(held_tile_);
      FinishOutput(held_tile_);
    }
  }

  template <bool kFullTile>
  __device__ __forceinline__ void ScoresToWeights(float (&scores)[kColumns / 2],
                                                  bool releases_query,
                                                  int32_t row,
                                                  uint32_t row_class) {
    if (releases_query) Release(Memory().query_empty[group_]);
    Release(Memory().key_empty[Stage(tile_)]);
    if (args_.negate) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) scores[i] = -scores[i];
    }
    if constexpr (!kFullTile) {
      MaskScores<kHalfLines>(scores, Memory().bounds[tile_ % Shared::kNotes], row, row_class);
    }
    softmax_.Update(scores, args_.scale_log2);
  }

  __device__ __forceinline__ void PackWeights(const float (&scores)[kColumns / 2]) {
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      weights_[i] = Pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void StartScores(float (&scores)[kColumns / 2]) {
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim, kHeld>(held_,
                                            ptx::SharedAddress(Memory().query[group_]),
                                            ptx::SharedAddress(Memory().key[Stage(tile_)]),
                                            scores);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void StartOutput(uint32_t tile) {
    Wait(Memory().value_full[Stage(tile)], Parity(tile));
    ptx::WgmmaFence();
    AddTile<Element, kHeadDim>(weights_,
                               ptx::SharedAddress(Memory().value[Stage(tile)]),
                               true,
                               out_sum_);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void FinishOutput(uint32_t tile) {
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(out_sum_);
    Release(Memory().value_empty[Stage(tile)]);
  }

  __device__ __forceinline__ void Finish() {
    Drain();
    const TileNote note = Note();
    const int32_t row_begin = note.row_begin + group_ * Config::kGroupRows;
    float* lse =
        args_.softmax_lse + (int64_t{note.batch} * args_.num_heads + note.head) * args_.seqlen_q;
    Element* out = static_cast<Element*>(args_.out.data) + note.batch * args_.out.batch_stride +
                   note.head * args_.out.head_stride;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t row = row_begin + FragmentRow() + 8 * r;
      const float sum = softmax_.Sum(r);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      const bool inside = row < args_.seqlen_q;
      if (inside && ptx::ThreadIndex() % 4 == 0) {
        lse[row] = sum == 0.0f ? -INFINITY : softmax_.LogSum(r, sum, args_.scale_log2);
      }
      StoreRow<Element, kHeadDim>(out_sum_,
                                  r,
                                  factor,
                                  out + row * args_.out.row_stride,
                                  inside ? args_.head_dim : 0);
    }
  }

  // Without overlap groups start their products Q K^T in turn, so that they do not all wait for the
  // tensor cores and then all leave them idle.
  __device__ __forceinline__ void TakeTurn() const {
    if constexpr (!Config::kOverlap) ptx::NamedBarrierSync(1 + group_, 2 * kWarpgroup);
  }

  __device__ __forceinline__ void PassTurn() const {
    if constexpr (!Config::kOverlap) {
      ptx::NamedBarrierArrive(1 + (group_ + 1) % Config::kGroups, 2 * kWarpgroup);
    }
  }

  static __device__ __forceinline__ uint32_t Stage(uint32_t tile) { return tile % Config::kStages; }
  static __device__ __forceinline__ uint32_t Parity(uint32_t tile) {
    return tile / Config::kStages % 2;
  }
  __device__ __forceinline__ const TileNote& Note() const {
    return Memory().notes[tile_ % Shared::kNotes];
  }

  // A lane of each warp says that the warp is done with what the barrier guards.
  static __device__ __forceinline__ void Release(uint64_t& barrier) {
    __syncwarp();
    if (kEveryLaneArrives || ptx::ElectOne()) Arrive(barrier);
  }

  // Not a member, which would take two registers.
  static __device__ __forceinline__ Shared& Memory() { return SharedMemory<Config>(); }

  static constexpr uint32_t kNoTileOfAll = ~0u;
  static constexpr int kHeld = Config::kHeld;

  const ForwardArguments& args_;
  int group_;
  uint32_t tile_ = 0;  // over all items
  OnlineSoftmax softmax_;
  float out_sum_[kHeadDim / 2];
  uint32_t weights_[kColumns / 4];
  uint32_t held_[kHeld > 0 ? kHeld : 1][4];  // of the query
  // With kOverlap: weights_ of held_tile_ are not yet in out_sum_.
  uint32_t held_tile_ = 0;
  bool holds_weights_ = false;
};

template <typename Config, bool kHalfLines>
__global__ void __launch_bounds__(Config::kThreads, 1)
    ForwardKernel(const __grid_constant__ ForwardArguments args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ForwardShared<Config>* shared = &SharedMemory<Config>();
  if (threadIdx.x == 0) {
    shared->Init();
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    ptx::LowerRegisters<Config::kLoaderRegisters>();
    constexpr bool kTwo = Config::kLoaders == 2;
    if (threadIdx.x == 0) Loader<Config, kTwo ? Loads::kKeys : Loads::kAll>(args, shared).Run();
    if (threadIdx.x / kWarp == 1) {
      ListItems<Config>(args, args.order, args.ticket, args.num_items, &shared->list);
    }
    if constexpr (kTwo) {
      if (threadIdx.x == 2 * kWarp) Loader<Config, Loads::kValues>(args, shared).Run();
    }
  } else {
    ptx::RaiseRegisters<Config::kGroupRegisters>();
    RowGroup<Config, kHalfLines>(args).Run();
  }
#endif
}

}  // namespace flashmask::sm90a
