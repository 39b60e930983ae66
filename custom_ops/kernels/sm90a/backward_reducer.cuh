#pragma once

// The warps of the sm90a backward that hand results to the copy engine; see backward.cuh.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/turn.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_shared.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// Warps 2 and 3 of the producer: one for each consumer group.
template <typename Config>
class BackwardReducer {
 public:
  using Shared = BackwardShared<Config>;

  __device__ __forceinline__ BackwardReducer(const BackwardArguments& args,
                                             Shared* shared,
                                             int group)
      : args_(args),
        shared_(shared),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        staging_(ptx::SharedAddress(shared->staging[group])) {}

  __device__ __forceinline__ void Run() {
    while (true) {
      ptx::NamedBarrierArrive(kStagingFree + group_, kStagingThreads);
      ptx::NamedBarrierSync(kStagingFull + group_, kStagingThreads);
      const Job& job = shared_->jobs[group_];
      const ItemInfo& item = shared_->items[item_parity_];
      if (job.kind == JobKind::kExit) break;
      if (job.kind != JobKind::kAddGradQuery) {
        if (lane_ == 0) StoreKeys(job.kind, item);
        __syncwarp();  // the parity may be kept in a register that the warp shares
        if (job.kind == JobKind::kStoreGradKey) item_parity_ ^= 1;  // the item's last job
      } else if (args_.order.live_blocks == nullptr) {
        if (lane_ == 0 && (job.step.flags & kDeadStep) == 0) AddGradQuery(job.step.tile);
      } else {
        AddInOrder(job.step, item.rank);
      }
      __syncwarp();
    }
    if (lane_ == 0) ptx::BulkWait<0>();
  }

 private:
  static constexpr uint32_t kStagingBytes = Config::kTileFloats / Config::kGroups * sizeof(float);

  __device__ __forceinline__ void AddGradQuery(int32_t tile) {
    float* sum = args_.grad_query_sum + int64_t{tile} * Config::kTileFloats +
                 group_ * (Config::kTileFloats / Config::kGroups);
    ptx::BulkReduceAdd(sum, staging_, kStagingBytes);
    ptx::BulkCommit();
    ptx::BulkWaitRead<0>();
  }

  // Adds after the live key block before this one, and tells the next.
  __device__ __forceinline__ void AddInOrder(const StepInfo& step, int32_t rank) {
    if ((step.flags & kDeadStep) != 0) return;
    const int32_t before = LiveRankBefore(step.mask_step, rank);
    if (lane_ != 0) return;
    int32_t* last_added = args_.order.last_added + int64_t{step.tile} * Config::kGroups + group_;
    while (ptx::LoadAcquire(last_added) != before + 1) {
    }
    ptx::FenceProxyGlobal();
    AddGradQuery(step.tile);
    ptx::BulkWait<0>();
    ptx::FenceProxyGlobal();
    ptx::StoreRelease(last_added, rank + 1);
  }

  // The greatest rank of a live key block below `rank`, or -1.
  __device__ __forceinline__ int32_t LiveRankBefore(int32_t mask_step, int32_t rank) const {
    constexpr int kBits = 32;
    const uint32_t* words = args_.order.live_blocks + int64_t{mask_step} * args_.order.words;
    for (int32_t last = rank / kBits; last >= 0; last -= kWarp) {
      const int32_t word = last - lane_;
      uint32_t bits = word >= 0 ? words[word] : 0;
      if (word == rank / kBits) bits &= (1u << rank % kBits) - 1;
      const unsigned lanes = __ballot_sync(kAllLanes, bits != 0);
      if (lanes != 0) {
        const int source = __ffs(static_cast<int>(lanes)) - 1;
        bits = __shfl_sync(kAllLanes, bits, source);
        return (last - source) * kBits + kBits - 1 - __clz(static_cast<int>(bits));
      }
    }
    return -1;
  }

  __device__ __forceinline__ void StoreKeys(JobKind kind, const ItemInfo& item) {
    const CUtensorMap* map = kind == JobKind::kStoreGradKey ? &args_.grad_key : &args_.grad_value;
    constexpr uint32_t kBoxBytes = Config::kGroupKeys * kSwizzleColumns * 2;
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::TmaStore4d(map,
                      staging_ + box * kBoxBytes,
                      box * kSwizzleColumns,
                      item.share,
                      item.key_begin + group_ * Config::kGroupKeys,
                      item.batch);
    }
    ptx::BulkCommit();
    ptx::BulkWaitRead<0>();
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int group_;
  int lane_;
  uint32_t staging_;
  uint32_t item_parity_ = 0;
};

}  // namespace flashmask::sm90a
