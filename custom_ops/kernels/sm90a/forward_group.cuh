#pragma once

// What a warpgroup of the forward does that computes: 64 rows of a work item by its tiles of keys.
// See forward.cuh for the roles and barriers.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/not_hoisted.h"
#include "kernels/ptx/thread_index.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/forward_loader.cuh"
#include "kernels/sm90a/forward_output.cuh"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/products.cuh"
#include "kernels/sm90a/ring_place.cuh"
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
  using Place = RingPlace<Config::kStages>;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kColumns = Config::kBlockColumns;

  explicit __device__ RowGroup(const ForwardArguments& args)
      : args_(args),
        group_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpgroup - 1, 0)) {
    if constexpr (ptx::kMustWriteOperands) {
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) weights_[i] = 0;
    }
  }

  __device__ __forceinline__ void Run() {
    if (group_ == Config::kGroups - 1) PassTurn();
    for (;;) {
      WaitForKeys();
      const uint32_t bits = Note().bits;
      if ((bits & kStop) != 0) break;
      if ((bits & kFirstRun) != 0) Begin(bits);
      const uint32_t classes = ClassesOf(bits, group_);
      const int32_t row = Note().row_begin + group_ * Config::kGroupRows + FragmentRow();
      const bool ends = (bits & (kLastRun | kNoTile)) == kLastRun;
      for (uint32_t left = bits >> kCountShift; left > 0; --left) {
        const bool releases_query = ends && left == 1;
        if (classes == kWholeTile) {
          Attend<true>(releases_query, row, classes);
        } else if (classes == kSkip) {
          Skip(releases_query);
        } else {
          Attend<false>(releases_query, row, classes);
        }
        if (left == 1 && (bits & kLastRun) != 0) Finish();
        ++tile_;
        if (left > 1) WaitForKeys();
      }
    }
    if (group_ == 0) TakeTurn();  // takes what the last group passed on
  }

 private:
  __device__ __forceinline__ void WaitForKeys() {
    if (!keys_are_here_) Wait(Memory().key_full[place_.stage], place_.parity);
  }

  // Goes on to the next tile, and asks for its keys ahead of time: an answer takes as long as a
  // hundred instructions. Returns the place of the tile at work.
  __device__ __forceinline__ Place Advance() {
    const Place here = place_;
    place_.Advance();
    keys_are_here_ = HasPassed(Memory().key_full[place_.stage], place_.parity);
    return here;
  }

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
    keys_are_here_ = false;
    TakeTurn();
    PassTurn();
    if (releases_query) Release(Memory().query_empty[group_]);
    Release(Memory().key_empty[place_.stage]);
    Wait(Memory().value_full[place_.stage], place_.parity);
    Release(Memory().value_empty[place_.stage]);
    place_.Advance();
  }

  // `row` is that of this thread's first score, `classes` what the run is to this group.
  template <bool kFullTile>
  __device__ __forceinline__ void Attend(bool releases_query, int32_t row, uint32_t classes) {
    if constexpr (kColumns > kPlanColumns) {
      const bool has_first = (classes & kClassMask) != kSkip;
      if (!kFullTile && !(has_first && classes >> kClassBits != kSkip)) {
        Drain();
        AttendPart(releases_query, row, has_first ? classes : classes >> kClassBits, !has_first);
        return;
      }
    }
    if constexpr (!Config::kOverlap) {
      AttendWhole<kFullTile>(releases_query, row, classes);
    } else if (holds_weights_) {
      AttendOverlapped<kFullTile, true>(releases_query, row, classes);
    } else {
      AttendOverlapped<kFullTile, false>(releases_query, row, classes);
    }
  }

  // P V of the tile's first keys beside the softmax of the next.
  template <bool kFullTile>
  __device__ __forceinline__ void AttendWhole(bool releases_query, int32_t row, uint32_t classes) {
    float scores[kColumns / 2];
    TakeTurn();
    StartScores(scores, 0);
    PassTurn();
    const int4* bounds = Bounds();
    const Place here = Advance();
    FinishScores<0>(scores, here, releases_query);
    if constexpr (!kFullTile) MaskScores<kHalfLines>(scores, bounds, row, EitherOf(classes));
    AddWeighted(scores, here, 0);
  }

  // The same for one of two parts of a tile.
  __device__ __forceinline__ void AttendPart(bool releases_query,
                                             int32_t row,
                                             uint32_t row_class,
                                             int part) {
    float scores[kColumns / 4];
    TakeTurn();
    StartScores(scores, part);
    PassTurn();
    const int4* bounds = Bounds() + part * kPlanColumns;
    const Place here = Advance();
    FinishScores<0>(scores, here, releases_query);
    if (row_class != kFull) MaskScores<kHalfLines>(scores, bounds, row, row_class);
    AddWeighted(scores, here, part);
  }

  // Q K^T of this tile beside P V of the one before, and that beside the softmax.
  template <bool kFullTile, bool kHoldsWeights>
  __device__ __forceinline__ void AttendOverlapped(bool releases_query,
                                                   int32_t row,
                                                   uint32_t classes) {
    float scores[kColumns / 2];
    TakeTurn();
    StartScores(scores, 0);
    if constexpr (kHoldsWeights) StartOutput(held_place_);
    PassTurn();
    const int4* bounds = Bounds();
    const Place here = Advance();
    FinishScores<kHoldsWeights ? 1 : 0>(scores, here, releases_query);
    if constexpr (!kFullTile) MaskScores<kHalfLines>(scores, bounds, row, EitherOf(classes));
    softmax_.Raise(scores, args_.scale_log2);
    softmax_.template Weigh<0, kColumns / 2>(scores, args_.scale_log2);
    if constexpr (kHoldsWeights) {
      ptx::StayBehind(tile_ == kNoTileOfAll);  // or ptxas waits for P V before the exponentials
      FinishOutput(held_place_);
    }
    if (__builtin_expect(softmax_.HasRisenOnceSummed(), false)) softmax_.Rescale(out_sum_);
#pragma unroll
    for (int i = 0; i < kColumns / 4; ++i) {
      weights_[i] = Pack<Element>(scores[2 * i], scores[2 * i + 1]);
    }
    held_place_ = here;
    holds_weights_ = true;
  }

  // Starts Q K^T of a tile, or of a part of it.
  template <int kScores>
  __device__ __forceinline__ void StartScores(float (&scores)[kScores], int part) {
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim, kHeld, kSquareBlock, kColumns>(
        held_,
        ptx::SharedAddress(Memory().query[group_]),
        ptx::SharedAddress(Memory().key[place_.stage]) + part * kPartBytes,
        scores);
    ptx::WgmmaCommit();
  }

  // Waits for Q K^T, but not for kPending products behind it. Then the stage of K is free, and the
  // query if this was its last use.
  template <int kPending, int kScores>
  __device__ __forceinline__ void FinishScores(float (&scores)[kScores],
                                               const Place& here,
                                               bool releases_query) {
    ptx::WgmmaWait<kPending>();
    ptx::WgmmaPin(scores);
    if (releases_query) Release(Memory().query_empty[group_]);
    Release(Memory().key_empty[here.stage]);
    if (__builtin_expect(args_.negate, false)) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = -scores[i];
    }
  }

  // Softmax and P V of a tile, or of a part of it.
  template <int kScores>
  __device__ __forceinline__ void AddWeighted(float (&scores)[kScores],
                                              const Place& here,
                                              int part) {
    softmax_.Raise(scores, args_.scale_log2);
    if (__builtin_expect(softmax_.HasRisen(), false)) softmax_.Rescale(out_sum_);
    Wait(Memory().value_full[here.stage], here.parity);
    AddStep<0>(scores, ptx::SharedAddress(Memory().value[here.stage]) + part * kPartBytes);
    FinishOutput(here);
  }

  // Weighs kPlanColumns keys and starts P V of them, then goes on to the next.
  template <int kBegin, int kScores>
  __device__ __forceinline__ void AddStep(float (&scores)[kScores], uint32_t value) {
    constexpr int kEnd = kBegin + kPlanColumns / 2;
    softmax_.template Weigh<kBegin, kEnd>(scores, args_.scale_log2);
    uint32_t weights[kPlanColumns / 4];
#pragma unroll
    for (int i = 0; i < kPlanColumns / 4; ++i) {
      weights[i] = Pack<Element>(scores[kBegin + 2 * i], scores[kBegin + 2 * i + 1]);
    }
    if constexpr (kEnd < kScores) ptx::StayBehind(softmax_.SumsAreNegative());
    ptx::WgmmaFence();
    AddTile<Element, kHeadDim, kColumns>(weights, value, true, out_sum_);
    ptx::WgmmaCommit();
    if constexpr (kEnd < kScores) AddStep<kEnd>(scores, value + kPartBytes);
  }

  // Adds the weights that are held back.
  __device__ __forceinline__ void Drain() {
    if constexpr (Config::kOverlap) {
      if (!holds_weights_) return;
      holds_weights_ = false;
      StartOutput(held_place_);
      FinishOutput(held_place_);
    }
  }

  __device__ __forceinline__ void StartOutput(const Place& tile) {
    Wait(Memory().value_full[tile.stage], tile.parity);
    ptx::WgmmaFence();
    AddTile<Element, kHeadDim>(weights_,
                               ptx::SharedAddress(Memory().value[tile.stage]),
                               true,
                               out_sum_);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void FinishOutput(const Place& tile) {
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(out_sum_);
    Release(Memory().value_empty[tile.stage]);
  }

  __device__ __forceinline__ void Finish() {
    Drain();
    StoreOutput<Element, kHeadDim>(args_, Note(), group_ * Config::kGroupRows, softmax_, out_sum_);
  }

  // Three groups start their products in turn, so that they do not all wait for the tensor cores
  // and then all leave them idle.
  __device__ __forceinline__ void TakeTurn() const {
    if constexpr (Config::kTurns) ptx::NamedBarrierSync(1 + group_, 2 * kWarpgroup);
  }

  __device__ __forceinline__ void PassTurn() const {
    if constexpr (Config::kTurns) {
      ptx::NamedBarrierArrive(1 + (group_ + 1) % Config::kGroups, 2 * kWarpgroup);
    }
  }

  __device__ __forceinline__ const int4* Bounds() const {
    return Memory().bounds[tile_ % Shared::kNotes];
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
  static constexpr int kPartBytes = kPlanColumns * kSwizzleBytes;  // to the next part of a tile
  // What all parts of a tile are if nothing is masked.
  static constexpr uint32_t kWholeTile = kColumns == kPlanColumns ? kFull : kBothFull;

  const ForwardArguments& args_;
  int group_;
  uint32_t tile_ = 0;           // over all items
  Place place_;                 // where K and V of the tile are
  bool keys_are_here_ = false;  // K of it is known to have arrived
  OnlineSoftmax softmax_;
  float out_sum_[kHeadDim / 2];
  uint32_t weights_[kColumns / 4];
  uint32_t held_[kHeld > 0 ? kHeld : 1][4];  // of the query
  // With kOverlap: weights_ of the tile at held_place_ are not yet in out_sum_.
  Place held_place_;
  bool holds_weights_ = false;
};

}  // namespace flashmask::sm90a
