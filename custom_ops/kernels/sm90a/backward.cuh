#pragma once

// Gradients of attention for sm_90a: wgmma, copies by the copy engine, warpgroups with roles.
//
// A work item is 128 keys of one key head. A block walks the live steps of rows (64 at head dims 96
// and 128, 128 at 64) of all query heads of the group, or of a share of both (key_shares.cuh),
// keeps grad_key and grad_value of its keys in registers, and adds each step's share of grad_query
// to a float buffer in global memory. Blocks are as many as multiprocessors and fetch items from a
// counter: heads section by section, so that the buffer's part at work stays in the L2, and in a
// section the longest key blocks first, or by place: for groups of heads, whose long key blocks
// come before all others, and where the sums of grad_query have an order. Who gets which item
// changes no other bits, but where blocks begin where others are (backward_scheduler.cuh).
//
// Roles, by warpgroup:
//   0, producer   warp 1 fetches items and lists their live steps, warp 0 has what is listed
//                 loaded; warps 2 and 3 hand a group's share of grad_query, and in the end its
//                 grad_key and grad_value, from staging to the copy engine
//   1, 2          each owns 64 keys. A step i of rows:
//                   S^T = K Q^T              issued at the end of step i - 1
//                   dP^T = V dO^T            under way while
//                   P^T = exp2(S^T - lse)
//                   dS^T = P^T (dP^T - delta)  masked by runs of bits where the step is partial; to
//                                            shared memory and, like P^T, to operands in registers
//                   dQ = dS K of step i - 1  half of it each, of both groups' keys
//                   dV += P^T dO, dK += dS^T Q
//                 The products from dQ to the next S^T are issued in turns: while one group has the
//                 tensor cores, the other computes weights. dQ is a step late, so that neither
//                 waits for the other's dS.
//
// What limits it, beside power, is the way to shared memory, 128 bytes a cycle: of the 3450 cycles
// or so of a step the operands of its products take 2000, dS, dQ and the loads another 900.
//
// Shared memory: key, value; query in 3 stages with its lse, the step's place and, for a partial
// step, the bounds of the keys; grad_out in 2 with delta; dS in 2; staging of half a dQ per group.
//
// Barriers in shared memory: per stage and for key and value a full one (bytes) and an empty one
// (a warp's arrivals). Named barriers: see NamedBarrier.
//
// The buffer of grad_query is laid out as a group's registers lie: [step][group][quad][thread][4].
// Sources: FlashAttention-3, arXiv 2407.08608; FlashMask, arXiv 2410.01359.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_consumer.cuh"
#include "kernels/sm90a/backward_loader.cuh"
#include "kernels/sm90a/backward_reducer.cuh"
#include "kernels/sm90a/backward_scheduler.cuh"
#include "kernels/sm90a/backward_shared.cuh"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* shared = reinterpret_cast<BackwardShared<Config>*>(memory);
  if (threadIdx.x == 0) {
    constexpr uint32_t kConsumerArrivals = Config::kGroups * kWarpgroup / kWarp * kWarpArrivals;
    const auto init = [](uint64_t& full, uint64_t& empty, uint32_t readers) {
      ptx::MbarrierInit(ptx::SharedAddress(&full), 1);
      ptx::MbarrierInit(ptx::SharedAddress(&empty), readers);
    };
    for (int i = 0; i < Config::kQueryStages; ++i) {
      init(shared->query_full[i], shared->query_empty[i], kConsumerArrivals);
    }
    for (int i = 0; i < Config::kGradOutStages; ++i) {
      init(shared->grad_out_full[i], shared->grad_out_empty[i], kConsumerArrivals);
    }
    for (int i = 0; i < kListEntries; ++i) init(shared->entry_full[i], shared->entry_empty[i], 1);
    for (int i = 0; i < kSlots; ++i) {
      ptx::MbarrierInit(ptx::SharedAddress(&shared->grad_scores_full[i]), kConsumerArrivals);
      ptx::MbarrierInit(ptx::SharedAddress(&shared->grad_scores_empty[i]), kConsumerArrivals);
    }
    init(shared->key_full, shared->key_empty, kConsumerArrivals);
    init(shared->value_full, shared->value_empty, kConsumerArrivals);
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  constexpr int kFirstReducer = 2;
  if (warp < kWarpgroup / kWarp) {
    ptx::LowerRegisters<Config::kProducerRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) BackwardLoader<Config>(args, shared).Run();
    } else if (warp == 1) {
      BackwardScheduler<Config>(args, shared).Run();
    } else if (warp >= kFirstReducer) {
      BackwardReducer<Config>(args, shared, warp - kFirstReducer).Run();
    }
  } else {
    ptx::RaiseRegisters<Config::kConsumerRegisters>();
    BackwardConsumer<Config>(args, shared, warp / (kWarpgroup / kWarp) - 1).Run();
  }
#endif
}

}  // namespace flashmask::sm90a
