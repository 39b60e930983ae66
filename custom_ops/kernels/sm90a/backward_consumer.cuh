#pragma once

// The two warpgroups of the sm90a backward that compute; see backward.cuh for the order of a step.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/stmatrix.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_math.cuh"
#include "kernels/sm90a/backward_shared.cuh"

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
    for (uint32_t count = 0;; ++count) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->key_full), count % 2);
      if (shared_->items[count % 2].key_begin == kNoMoreItems) break;
      RunItem(count % 2);
    }
    Post(JobKind::kExit, 0);
  }

 private:
  static constexpr int kRowBlock = kRows * kSwizzleBytes;
  static constexpr int kKeyBlock = Config::kKeys * kSwizzleBytes;
  static constexpr int kGroupBlock = Config::kGroupKeys * kSwizzleBytes;
  static constexpr int kDepthRows = kWgmmaDepth * kSwizzleBytes;

  __device__ __forceinline__ int Lane() const { return thread_ % kWarp; }

  // Shared address of the same tile of this group's keys, or of another stage.
  __device__ __forceinline__ uint32_t Query(int stage) const {
    return ptx::SharedAddress(shared_->query) + stage * (kRows * kHeadDim * 2);
  }
  __device__ __forceinline__ uint32_t GradOut(int stage) const {
    return ptx::SharedAddress(shared_->grad_out) + stage * (kRows * kHeadDim * 2);
  }
  __device__ __forceinline__ uint32_t GradScores(int slot) const {
    return ptx::SharedAddress(shared_->grad_scores) + slot * (Config::kKeys * kRows * 2);
  }

  __device__ __forceinline__ void Arrive(const uint64_t& barrier) const {
    if (Lane() == 0) ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
  }

  // result = keys (64 x kHeadDim) rows^T
  __device__ __forceinline__ void MultiplyByRows(const Element* keys,
                                                 uint32_t rows,
                                                 float (&result)[kScores]) const {
    const uint64_t left =
        ptx::SwizzledTile(ptx::SharedAddress(keys) + group_ * kGroupBlock, kUnusedDistance);
    const uint64_t right = ptx::SwizzledTile(rows, kUnusedDistance);
#pragma unroll
    for (int k = 0; k < kHeadDim / kWgmmaDepth; ++k) {
      const int block = k / kStepsPerBlock;
      const int in_line = k % kStepsPerBlock * kStepBytes;
      ptx::WgmmaShared<Element, kRows, false, false>(result,
                                                     ptx::Shift(left, block * kKeyBlock + in_line),
                                                     ptx::Shift(right, block * kRowBlock + in_line),
                                                     k != 0);
    }
  }

  // sums += cells^T rows: `cells` as registers hold 64 keys by kRows, `rows` kRows x kHeadDim.
  __device__ __forceinline__ void AddProduct(const uint32_t (&cells)[kScores / 2],
                                             uint32_t rows,
                                             bool keep,
                                             float (&sums)[kKeySums]) const {
    const uint64_t right = ptx::SwizzledTile(rows, kRowBlock);
#pragma unroll
    for (int k = 0; k < kRows / kWgmmaDepth; ++k) {
      ptx::WgmmaRegisters<Element, kHeadDim, true>(sums,
                                                   cells[4 * k],
                                                   cells[4 * k + 1],
                                                   cells[4 * k + 2],
                                                   cells[4 * k + 3],
                                                   ptx::Shift(right, k * kDepthRows),
                                                   k != 0 || keep);
    }
  }

  // The same with dS of this group's keys in shared memory.
  __device__ __forceinline__ void AddGradKey(int slot,
                                             uint32_t rows,
                                             bool keep,
                                             float (&sums)[kKeySums]) const {
    const uint64_t left =
        ptx::SwizzledTile(GradScores(slot) + group_ * kGroupBlock, kUnusedDistance);
    const uint64_t right = ptx::SwizzledTile(rows, kRowBlock);
#pragma unroll
    for (int k = 0; k < kRows / kWgmmaDepth; ++k) {
      const int block = k / kStepsPerBlock;
      const int in_line = k % kStepsPerBlock * kStepBytes;
      ptx::WgmmaShared<Element, kHeadDim, false, true>(
          sums,
          ptx::Shift(left, block * kKeyBlock + in_line),
          ptx::Shift(right, k * kDepthRows),
          k != 0 || keep);
    }
  }

  // This group's part of dS K: at head dim 128 half of the columns, at 64 half of the rows.
  __device__ __forceinline__ void MultiplyByKeys(int slot, float (&result)[32]) const {
    constexpr bool kHalfColumns = kHeadDim == 128;
    const uint64_t left =
        ptx::SwizzledTile(GradScores(slot) + (kHalfColumns ? 0 : group_ * kKeyBlock),
                          kUnusedDistance);
    const uint64_t right = ptx::SwizzledTile(
        ptx::SharedAddress(shared_->key) + (kHalfColumns ? group_ * kKeyBlock : 0),
        kUnusedDistance);
#pragma unroll
    for (int k = 0; k < Config::kKeys / kWgmmaDepth; ++k) {
      ptx::WgmmaShared<Element, kSwizzleColumns, true, true>(result,
                                                             ptx::Shift(left, k * kDepthRows),
                                                             ptx::Shift(right, k * kDepthRows),
                                                             k != 0);
    }
  }

  // Gives registers a value of no interest, at no cost: a product that starts anew still names them
  // as inputs.
  template <int kCount>
  static __device__ __forceinline__ void Define(float (&values)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(values[i]));
  }

  // grad_value += weights^T grad_out, and once both groups stored dS the share of grad_query; two
  // groups of products that are not waited for.
  __device__ __forceinline__ void AddWeighted(const uint32_t (&weights)[kScores / 2],
                                              int grad_out_stage,
                                              int slot,
                                              bool keep,
                                              float (&grad_value)[kKeySums],
                                              float (&grad_query)[Config::kGroupSums]) const {
    ptx::WgmmaFence();
    AddProduct(weights, GradOut(grad_out_stage), keep, grad_value);
    ptx::WgmmaCommit();
    ptx::FenceProxyAsync();
    ptx::NamedBarrierSync(kGradScoresStored, Config::kGroups * kWarpgroup);
    MultiplyByKeys(slot, grad_query);
    ptx::WgmmaCommit();
  }

  __device__ __forceinline__ void RunItem(uint32_t parity) {
    float grad_key[kKeySums];
    float grad_value[kKeySums];
    float scores[kScores];
    float grads[kScores];
    float grad_query[Config::kGroupSums];
    uint32_t weights[kScores / 2];
    Define(grad_key);
    Define(grad_value);
    Define(scores);
    Define(grad_query);
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_full[query_.stage]), query_.parity);
    ptx::WgmmaFence();
    MultiplyByRows(shared_->key, Query(query_.stage), scores);
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(scores);
    bool first = true;
    int before = 0;  // query stage of the step before
    int slot = 0;
    while (true) {
      const int query_stage = query_.stage;
      const int grad_out_stage = grad_out_.stage;
      const uint32_t flags = shared_->steps[query_stage].flags;
      const bool last = (flags & kLastStep) != 0;
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_out_full[grad_out_stage]),
                        grad_out_.parity);
      if (first) ptx::MbarrierWait(ptx::SharedAddress(&shared_->value_full), parity);
      ptx::WgmmaFence();
      MultiplyByRows(shared_->value, GradOut(grad_out_stage), grads);
      ptx::WgmmaCommit();
      ptx::WgmmaFence();
      // In the first step this yields nothing of use, which the next step's sum then replaces.
      AddGradKey(slot ^ 1, Query(first ? query_stage : before), keep_key_, grad_key);
      ptx::WgmmaCommit();
      keep_key_ = !first;

      const bool partial = (flags & kPartialStep) != 0;
      uint32_t masked[2] = {0, 0};
      // In both branches, so that they are done there: behind one branch ptxas puts some off until
      // after the wait, and without any it moves the wait before them.
      if (partial) {
        FindMaskedRows(query_stage, masked);
        ExponentiateScores(query_stage, scores);
      } else {
        ExponentiateScores(query_stage, scores);
      }
      // Only now, as the fence waits for the stores to shared memory.
      if (!first) Post(JobKind::kAddGradQuery, before);
      ptx::WgmmaWait<1>();
      ptx::WgmmaPin(grads);
      if (last) Arrive(shared_->value_empty);
      if (partial) {
        FormGradScores<true>(grad_out_stage, slot, scores, grads, masked, weights);
      } else {
        FormGradScores<false>(grad_out_stage, slot, scores, grads, masked, weights);
      }
      ptx::WgmmaWait<0>();
      ptx::WgmmaPin(grad_key);
      if (!first) Arrive(shared_->query_empty[before]);

      before = query_stage;
      query_.Advance();
      if (last) break;
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_full[query_.stage]), query_.parity);
      AddWeighted(weights, grad_out_stage, slot, !first, grad_value, grad_query);
      MultiplyByRows(shared_->key, Query(query_.stage), scores);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<1>();
      ptx::WgmmaPin(grad_value);
      ptx::WgmmaPin(grad_query);
      Arrive(shared_->grad_out_empty[grad_out_stage]);
      grad_out_.Advance();
      StageGradQuery(grad_query);
      ptx::WgmmaWait<0>();
      ptx::WgmmaPin(scores);
      first = false;
      slot ^= 1;
    }

    AddWeighted(weights, grad_out_.stage, slot, !first, grad_value, grad_query);
    AddGradKey(slot, Query(before), keep_key_, grad_key);
    ptx::WgmmaCommit();
    keep_key_ = false;
    ptx::WgmmaWait<1>();
    ptx::WgmmaPin(grad_value);
    ptx::WgmmaPin(grad_query);
    Arrive(shared_->key_empty);
    Arrive(shared_->grad_out_empty[grad_out_.stage]);
    grad_out_.Advance();
    StageGradQuery(grad_query);
    Post(JobKind::kAddGradQuery, before);
    StageKeySums(grad_value, 1.0f);
    Post(JobKind::kStoreGradValue, before);
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(grad_key);
    Arrive(shared_->query_empty[before]);
    StageKeySums(grad_key, args_.softmax_scale);
    Post(JobKind::kStoreGradKey, before);
  }

  // Scores to weights, masked ones too.
  __device__ __forceinline__ void ExponentiateScores(int stage, float (&scores)[kScores]) const {
    const float* terms = shared_->lse_log2[stage] + Lane() % 4 * 2;
    const float scale = args_.scale_log2;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(terms + 8 * j);
      scores[4 * j] = Exp2(fmaf(scores[4 * j], scale, -lse.x));
      scores[4 * j + 1] = Exp2(fmaf(scores[4 * j + 1], scale, -lse.y));
      scores[4 * j + 2] = Exp2(fmaf(scores[4 * j + 2], scale, -lse.x));
      scores[4 * j + 3] = Exp2(fmaf(scores[4 * j + 3], scale, -lse.y));
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

  // Rounds the weights to operands, and stores the gradients of the scores. Masked cells become 0
  // only here, in pairs: whatever their scores and gradients were, infinite or no numbers.
  template <bool kPartial>
  __device__ __forceinline__ void FormGradScores(int stage,
                                                 int slot,
                                                 const float (&scores)[kScores],
                                                 const float (&grads)[kScores],
                                                 const uint32_t (&masked)[2],
                                                 uint32_t (&weights)[kScores / 2]) const {
    const float* terms = shared_->delta[stage] + Lane() % 4 * 2;
    const int row = Lane() % 16;
    const uint32_t to =
        GradScores(slot) + group_ * kGroupBlock + (thread_ / kWarp * 16 + row) * kSwizzleBytes;
#pragma unroll
    for (int i = 0; i < kRows / kWgmmaDepth; ++i) {
      uint32_t cells[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 2 * i + half;
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
          cells[2 * half + key] = cell;
        }
      }
      const int chunk = 2 * i % 8 + Lane() / 16;
      ptx::StMatrixX4(to + 2 * i / 8 * kKeyBlock + ((chunk ^ row % 8) * 16),
                      cells[0],
                      cells[1],
                      cells[2],
                      cells[3]);
    }
  }

  __device__ __forceinline__ uint32_t WaitForStaging() const {
    ptx::NamedBarrierSync(kStagingFree + group_, kStagingThreads);
    return ptx::SharedAddress(shared_->staging[group_]);
  }

  __device__ __forceinline__ void StageGradQuery(const float (&sums)[32]) const {
    constexpr uint32_t kQuadBytes = 4 * sizeof(float);
    const uint32_t to = WaitForStaging() + thread_ * kQuadBytes;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      StoreSharedQuad(to + i * (kWarpgroup * kQuadBytes),
                      sums[4 * i],
                      sums[4 * i + 1],
                      sums[4 * i + 2],
                      sums[4 * i + 3]);
    }
  }

  __device__ __forceinline__ void StageKeySums(const float (&sums)[kKeySums], float factor) const {
    const int row = Lane() % 16;
    const uint32_t to = WaitForStaging() + (thread_ / kWarp * 16 + row) * kSwizzleBytes;
#pragma unroll
    for (int i = 0; i < kHeadDim / kWgmmaDepth; ++i) {
      uint32_t cells[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        cells[c] = Pack<Element>(sums[8 * i + 2 * c] * factor, sums[8 * i + 2 * c + 1] * factor);
      }
      const int chunk = 2 * i % 8 + Lane() / 16;
      ptx::StMatrixX4(to + 2 * i / 8 * kGroupBlock + ((chunk ^ row % 8) * 16),
                      cells[0],
                      cells[1],
                      cells[2],
                      cells[3]);
    }
  }

  // Hands the staging to the reducer; `stage` is the query stage of the step.
  __device__ __forceinline__ void Post(JobKind kind, int stage) const {
    if (kind == JobKind::kExit) WaitForStaging();
    ptx::FenceProxyAsync();
    if (thread_ == 0) {
      const StepInfo step = shared_->steps[stage];
      shared_->jobs[group_] = {step.tile, kind, step.mask_step, step.flags};
    }
    __syncwarp();
    ptx::NamedBarrierArrive(kStagingFull + group_, kStagingThreads);
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int group_;
  int thread_;
  bool keep_key_ = false;
  RingPlace<Config::kQueryStages> query_;
  RingPlace<Config::kGradOutStages> grad_out_;
};

}  // namespace flashmask::sm90a
