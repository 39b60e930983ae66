#pragma once

// Forward attention for Hopper: wgmma, the copy engine, warpgroups with roles.
//
// A block stays on its SM and takes work items (192 query rows of a head, or 128) off a counter,
// longest first within sections of heads whose K and V fit the L2. It walks the live tiles of 64 or
// 128 keys, and of the latter only the half that is live; tile_config.h has the numbers.
//
// Roles: warpgroup 0 loads: its warp 1 finds live tiles (live_list.cuh) ahead of time, a thread of
// its warp 0 starts the copies, but for those of V where one of its warp 2 does (kLoaders). The
// others compute 64 rows each: S = Q K^T, softmax, O += P V with S, P and O in registers. While one
// waits for its softmax the others keep the tensor cores busy, and its own products run beside it
// where registers allow (Attend). A group skips tiles, and halves of tiles, that are dead for its
// own rows, and masks those that are partial for them; all else runs free of mask code.
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

#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/sm90a/forward_group.cuh"
#include "kernels/sm90a/forward_loader.cuh"
#include "kernels/sm90a/live_list.cuh"
#include "kernels/sm90a/tile_config.h"

#include <cuda_runtime.h>

namespace flashmask::sm90a {

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
