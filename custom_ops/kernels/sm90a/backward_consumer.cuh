#pragma once

// The two warpgroups of the sm90a backward that compute; see backward.cuh for the order of a step.

#include "kernels/common/device_math.cuh"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/not_hoisted.h"
#include "kernels/ptx/stmatrix.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_shared.cuh"
#include "kernels/sm90a/products.cuh"
#include "kernels/sm90a/softmax.cuh"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// Warpgroups 1 and 2.
template <typename Config>
class BackwardConsumer {
 public:
  using Element = typename Config::Element;
  using Shared = BackwardShared<Config>;
  static constexpr int kRows = Config::kRows;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kScores = kRows / 2;      // floats of a thread of 64 keys by kRows
  static constexpr int kKeySums = kHeadDim / 2;  // and by kHeadDim

  __device__ __forceinline__ BackwardConsumer(const BackwardArguments& args,
                                              Shared* shared,
                                              int group)
      : args_(args),
        shared_(shared),
        group_(group),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ __forceinline__ void Run() {
    if (group_ == Config::kGroups - 1) PassTurn();
    for (uint32_t count = 0;; ++count) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->key_full), count % 2);
      if (shared_->items[count % 2].key_begin == kNoMoreItems) break;
      RunItem(count % 2);
    }
    if (group_ == 0) TakeTurn();  // takes what was passed on last
    WaitForStaging();
    Post({{}, true});
  }

 private:
  static constexpr int kHeldValues = Config::kHeldValues;
  static constexpr int kKeyBlock = Config::kKeys * kSwizzleBytes;
  static constexpr int kGroupBlock = Config::kGroupKeys * kSwizzleBytes;
  static constexpr int kDepthRows = kWgmmaDepth * kSwizzleBytes;

  __device__ __forceinline__ int Lane() const { return thread_ % kWarp; }

  // Shared address of the same tile of this group's keys, or of another stage.
  __device__ __forceinline__ uint32_t Query(int stage) const {
    return ptx::SharedAddress(shared_->query) + stage * (Shared::kRowTile * 2);
  }
  __device__ __forceinline__ uint32_t GradOut(int stage) const {
    return ptx::SharedAddress(shared_->grad_out) + stage * (Shared::kRowTile * 2);
  }
  __device__ __forceinline__ uint32_t GradScores(int slot) const {
    return ptx::SharedAddress(shared_->grad_scores) + slot * (Config::kKeys * kRows * 2);
  }

  // Once all lanes have read what the barrier gives away.
  __device__ __forceinline__ void Arrive(const uint64_t& barrier) const {
    __syncwarp();
    if (kEveryLaneArrives || Lane() == 0) ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
  }

  // Shared address of this group's part of key or value.
  __device__ __forceinline__ uint32_t Mine(const Element* keys) const {
    return ptx::SharedAddress(keys) + group_ * kGroupBlock;
  }

  // scores = key query^T. Boxes of the key's columns may overlap: the later one is read from where
  // the former ends.
  __device__ __forceinline__ void StartScores(float (&scores)[kScores]) const {
    constexpr int kOverlap = (kSwizzleColumns - Config::kGroupColumns) * sizeof(Element);
    ptx::WgmmaDefine(scores);
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim, 0, kKeyBlock + kOverlap>(nullptr,
                                                              Mine(shared_->key),
                                                              Query(query_.stage),
                                                              scores);
    ptx::WgmmaCommit();
  }

  // This group's part of dS K.
  __device__ __forceinline__ void MultiplyByKeys(int slot,
                                                 float (&result)[Config::kGroupSums]) const {
    constexpr bool kHalfColumns = Config::kHalfColumns;
    const uint64_t left =
        ptx::SwizzledTile(GradScores(slot) + (kHalfColumns ? 0 : group_ * kKeyBlock),
                          kUnusedDistance);
    const uint64_t right = ptx::SwizzledTile(
        ptx::SharedAddress(shared_->key) + (kHalfColumns ? group_ * kKeyBlock : 0),
        kUnusedDistance);
#pragma unroll
    for (int k = 0; k < Config::kKeys / kWgmmaDepth; ++k) {
      ptx::WgmmaShared<Element, Config::kGroupColumns, true, true>(
          result,
          ptx::Shift(left, k * kDepthRows),
          ptx::Shift(right, k * kDepthRows),
          k != 0);
    }
  }

  __device__ __forceinline__ void RunItem(uint32_t parity) {
    float grad_key[kKeySums];
    float grad_value[kKeySums];
    float scores[kScores];
    float grads[kScores];
    float grad_query[Config::kGroupSums];
    uint32_t weights[kScores / 2];
    uint32_t cells[kScores / 2];
    uint32_t held_value[kHeldValues > 0 ? kHeldValues : 1][4];
    ptx::WgmmaDefine(grad_key);
    ptx::WgmmaDefine(grad_value);
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_full[query_.stage]), query_.parity);
    StartScores(scores);
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(scores);
    bool first = true;
    while (true) {
      const int query_stage = query_.stage;
      const int grad_out_stage = grad_out_.stage;
      const uint32_t flags = shared_->steps[query_stage].flags;
      const bool last = (flags & kLastStep) != 0;
      const bool partial = (flags & kPartialStep) != 0;
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_out_full[grad_out_stage]),
                        grad_out_.parity);
      if (first) {
        ptx::MbarrierWait(ptx::SharedAddress(&shared_->value_full), parity);
        if constexpr (kHeldValues > 0) {
          // Its addresses kept over the loop would take registers.
          const int thread = ptx::NotHoisted(thread_);
          LoadHeld<kHeadDim, kHeldValues, kKeyBlock>(Mine(shared_->value), thread, held_value);
        }
      }
      ptx::WgmmaDefine(grads);
      ptx::WgmmaFence();
      MultiplyTiles<Element, kHeadDim, kHeldValues, kKeyBlock>(held_value,
                                                               Mine(shared_->value),
                                                               GradOut(grad_out_stage),
                                                               grads);
      ptx::WgmmaCommit();

      uint32_t masked[2] = {0, 0};
      // In both branches, so that they are done there: behind one branch ptxas puts some off until
      // after the wait, and without any it moves the wait before them.
      if (partial) {
        FindMaskedRows(query_stage, masked);
        ExponentiateScores(query_stage, scores);
      } else {
        ExponentiateScores(query_stage, scores);
      }
      ptx::WgmmaWait<0>();
      ptx::WgmmaPin(grads);
      if (last) Arrive(shared_->value_empty);
      if (partial) {
        FormGradScores<true>(grad_out_stage, scores, grads, masked, weights, cells);
      } else {
        FormGradScores<false>(grad_out_stage, scores, grads, masked, weights, cells);
      }
      // Before the products are issued: stores would wait for their reads of shared memory.
      StoreGradScores(query_stage, cells);

      TakeTurn();
      if (first) {
        ptx::WgmmaUnused();
      } else {
        WaitForGradScores(before_);
      }
      ptx::WgmmaDefine(grad_query);
      ptx::WgmmaFence();
      MultiplyByKeys(before_.stage, grad_query);
      ptx::WgmmaCommit();
      ptx::WgmmaFence();
      AddTile<Element, kHeadDim>(weights, GradOut(grad_out_stage), !first, grad_value);
      AddTile<Element, kHeadDim>(cells, Query(query_stage), !first, grad_key);
      ptx::WgmmaCommit();
      query_.Advance();
      grad_out_.Advance();
      ptx::WgmmaWait<1>();
      ptx::WgmmaPin(grad_query);
      if (!first) HandOutGradQuery(before_.stage, grad_query);
      ptx::WgmmaWait<0>();
      ptx::WgmmaPin(grad_value);
      ptx::WgmmaPin(grad_key);
      Arrive(shared_->query_empty[query_stage]);
      Arrive(shared_->grad_out_empty[grad_out_stage]);
      before_ = slot_;
      slot_.Advance();
      first = false;
      if (last) break;
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_full[query_.stage]), query_.parity);
      StartScores(scores);
      PassTurn();
      ptx::WgmmaWait<0>();
      ptx::WgmmaPin(scores);
    }

    PassTurn();
    // First, as the other group may be behind.
    StoreKeySums(args_.grad_value, shared_->items[parity], grad_value, 1.0f);
    StoreKeySums(args_.grad_key, shared_->items[parity], grad_key, args_.softmax_scale);
    WaitForGradScores(before_);
    ptx::WgmmaDefine(grad_query);
    ptx::WgmmaFence();
    MultiplyByKeys(before_.stage, grad_query);
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(grad_query);
    Arrive(shared_->key_empty);
    HandOutGradQuery(before_.stage, grad_query);
  }

  // Scores to weights, masked ones too.
  __device__ __forceinline__ void ExponentiateScores(int stage, float (&scores)[kScores]) const {
    const float* terms = shared_->lse_log2[stage] + Lane() % 4 * 2;
    const float scale = args_.scale_log2;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(terms + 8 * j);
      scores[4 * j] = ptx::Exp2(fmaf(scores[4 * j], scale, -lse.x));
      scores[4 * j + 1] = ptx::Exp2(fmaf(scores[4 * j + 1], scale, -lse.y));
      scores[4 * j + 2] = ptx::Exp2(fmaf(scores[4 * j + 2], scale, -lse.x));
      scores[4 * j + 3] = ptx::Exp2(fmaf(scores[4 * j + 3], scale, -lse.y));
    }
  }

  // MaskedRows of the thread's two keys.
  __device__ __forceinline__ void FindMaskedRows(int stage, uint32_t (&masked)[2]) const {
    const int key = group_ * Config::kGroupKeys + thread_ / kWarp * 16 + Lane() / 4;
    const int32_t row = shared_->steps[stage].row_begin;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      masked[i] = MaskedRows<kRows>(shared_->bounds[stage][key + 8 * i], row, Lane() % 4 * 2);
    }
  }

  // Rounds the weights, and the gradients of the scores, to operands. Masked cells become 0 only
  // here, in pairs: whatever their scores and gradients were, infinite or no numbers.
  template <bool kPartial>
  __device__ __forceinline__ void FormGradScores(int stage,
                                                 const float (&scores)[kScores],
                                                 const float (&grads)[kScores],
                                                 const uint32_t (&masked)[2],
                                                 uint32_t (&weights)[kScores / 2],
                                                 uint32_t (&cells)[kScores / 2]) const {
    const float* terms = shared_->delta[stage] + Lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(terms + 8 * j);
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const float* p = scores + 4 * j + 2 * key;
        const float* d = grads + 4 * j + 2 * key;
        uint32_t weight = Pack<Element>(p[0], p[1]);
        uint32_t cell = Pack<Element>(p[0] * (d[0] - delta.x), p[1] * (d[1] - delta.y));
        if constexpr (kPartial) {
          const uint32_t hidden = SpreadPair(masked[key], j);
          weight &= ~hidden;
          cell &= ~hidden;
        }
        weights[2 * j + key] = weight;
        cells[2 * j + key] = cell;
      }
    }
  }

  // To this group's keys of the slot, once both groups have read what was there; `stage` is the
  // query stage of the step.
  __device__ __forceinline__ void StoreGradScores(int stage,
                                                  const uint32_t (&cells)[kScores / 2]) const {
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_scores_empty[slot_.stage]),
                      slot_.parity ^ 1);
    const int row = Lane() % 16;
    const uint32_t to = GradScores(slot_.stage) + group_ * kGroupBlock +
                        (thread_ / kWarp * 16 + row) * kSwizzleBytes;
#pragma unroll
    for (int i = 0; i < kRows / kWgmmaDepth; ++i) {
      const int chunk = 2 * i % 8 + Lane() / 16;
      ptx::StMatrixX4(to + 2 * i / 8 * kKeyBlock + ((chunk ^ row % 8) * 16),
                      cells[4 * i],
                      cells[4 * i + 1],
                      cells[4 * i + 2],
                      cells[4 * i + 3]);
    }
    ptx::FenceProxyAsync();
    if (thread_ == 0) shared_->stored[group_][slot_.stage] = shared_->steps[stage];
    Arrive(shared_->grad_scores_full[slot_.stage]);
  }

  __device__ __forceinline__ void WaitForGradScores(const RingPlace<kSlots>& slot) const {
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_scores_full[slot.stage]), slot.parity);
  }

  // The groups issue their products in turn: while one has the tensor cores, the other computes
  // weights. Without turns they may fall in step.
  __device__ __forceinline__ void TakeTurn() const {
    ptx::NamedBarrierSync(kTurn + group_, Config::kGroups * kWarpgroup);
  }

  __device__ __forceinline__ void PassTurn() const {
    ptx::NamedBarrierArrive(kTurn + (group_ ^ 1), Config::kGroups * kWarpgroup);
  }

  __device__ __forceinline__ uint32_t WaitForStaging() const {
    ptx::NamedBarrierSync(kStagingFree + group_, kStagingThreads);
    return ptx::SharedAddress(shared_->staging[group_]);
  }

  __device__ __forceinline__ void StageGradQuery(const float (&sums)[Config::kGroupSums]) const {
    constexpr uint32_t kQuadBytes = 4 * sizeof(float);
    const uint32_t to = WaitForStaging() + thread_ * kQuadBytes;
#pragma unroll
    for (int i = 0; i < Config::kGroupSums / 4; ++i) {
      ptx::StoreSharedQuad(to + i * (kWarpgroup * kQuadBytes),
                           sums[4 * i],
                           sums[4 * i + 1],
                           sums[4 * i + 2],
                           sums[4 * i + 3]);
    }
  }

  __device__ __forceinline__ void StoreKeySums(const TensorView& view,
                                               const ItemInfo& item,
                                               const float (&sums)[kKeySums],
                                               float factor) const {
    Element* to = static_cast<Element*>(view.data) + item.batch * view.batch_stride +
                  item.head_k * view.head_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t key = item.key_begin + group_ * Config::kGroupKeys + FragmentRow() + 8 * i;
      StoreRow<Element, kHeadDim>(sums,
                                  i,
                                  factor,
                                  to + key * view.row_stride,
                                  key < args_.seqlen_k ? args_.head_dim : 0);
    }
  }

  // Hands the staging to the reducer.
  __device__ __forceinline__ void Post(const Job& job) const {
    ptx::FenceProxyAsync();
    if (thread_ == 0) shared_->jobs[group_] = job;
    __syncwarp();
    ptx::NamedBarrierArrive(kStagingFull + group_, kStagingThreads);
  }

  // The share of grad_query of the step whose dS was in the slot, to the reducer.
  __device__ __forceinline__ void HandOutGradQuery(
      int slot,
      const float (&grad_query)[Config::kGroupSums]) const {
    Arrive(shared_->grad_scores_empty[slot]);
    StageGradQuery(grad_query);
    Post({shared_->stored[group_][slot], false});
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int group_;
  int thread_;
  RingPlace<Config::kQueryStages> query_;
  RingPlace<Config::kGradOutStages> grad_out_;
  RingPlace<kSlots> slot_;    // of dS of this step
  RingPlace<kSlots> before_;  // and of the step before
};

}  // namespace flashmask::sm90a
