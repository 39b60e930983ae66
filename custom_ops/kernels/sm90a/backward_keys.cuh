#pragma once

// Gradients of key and value for wide head dims on sm_90a; see backward_wide_config.h for why there
// is a kernel of its own, and backward.cuh for how items are handed out and listed.
//
// A work item is 64 keys of one key head. A block walks the live steps of 64 rows of all query
// heads of the group, or of a share of both (key_shares.cuh).
//
// Roles, by warpgroup:
//   0, producer   warp 1 fetches items and lists their live steps, warp 0 has what is listed loaded
//   1, values     S^T = K Q^T, P^T = exp2(S^T - lse), masked where the step is partial, to shared
//                 memory for the other group and as operand in registers; grad_value += P^T dO
//   2, keys       dP^T = V dO^T, dS^T = P^T (dP^T - delta), as operand; grad_key += dS^T Q
// P^T is all that goes from one group to the other, so each keeps a sum of 64 keys by the whole
// head dim in registers. The groups fall into alternating by themselves, since one waits for the
// other's P^T; turns at the tensor cores cost 3 to 5 %.
//
// Shared memory: key, value; stages of query with lse, the step's place and, for a partial step,
// the bounds of the keys; stages of grad_out with delta; two of P^T.
//
// Barriers in shared memory: per stage, for key and for value a full one (bytes) and an empty one
// (a lane of each warp of both groups); for P^T both count warps of one group.

#include "kernels/common/device_math.cuh"
#include "kernels/ptx/arithmetic.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/thread_index.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_loader.cuh"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_scheduler.cuh"
#include "kernels/sm90a/backward_shared.cuh"
#include "kernels/sm90a/backward_wide_config.h"
#include "kernels/sm90a/products.cuh"
#include "kernels/sm90a/ring_place.cuh"
#include "kernels/sm90a/softmax.cuh"
#include "kernels/sm90a/warp_arrivals.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Config>
struct WideKeysShared {
  using Element = typename Config::Element;
  static constexpr int kTile = Config::kKeys * Config::kHeadDim;
  static constexpr int kRowTile = Config::kRows * Config::kHeadDim;
  static constexpr int kWeightQuads = kWideCells / 2 / 4;  // of a thread
  alignas(1024) Element key[kTile];
  alignas(1024) Element value[kTile];
  alignas(1024) Element query[Config::kQueryStages][kRowTile];
  alignas(1024) Element grad_out[Config::kGradOutStages][kRowTile];
  alignas(128) uint4 weights[kSlots][kWeightQuads][kWarpgroup];  // as registers lie
  alignas(128) int4 bounds[Config::kQueryStages][Config::kKeys];
  alignas(128) float lse_log2[Config::kQueryStages][Config::kRows];
  alignas(128) float delta[Config::kGradOutStages][Config::kRows];
  StepInfo steps[Config::kQueryStages];
  ItemInfo items[2];
  ListEntry entries[kListEntries];
  alignas(8) uint64_t query_full[Config::kQueryStages];
  alignas(8) uint64_t query_empty[Config::kQueryStages];
  alignas(8) uint64_t grad_out_full[Config::kGradOutStages];
  alignas(8) uint64_t grad_out_empty[Config::kGradOutStages];
  alignas(8) uint64_t weights_full[kSlots];
  alignas(8) uint64_t weights_empty[kSlots];
  alignas(8) uint64_t entry_full[kListEntries];
  alignas(8) uint64_t entry_empty[kListEntries];
  alignas(8) uint64_t key_full;
  alignas(8) uint64_t key_empty;
  alignas(8) uint64_t value_full;
  alignas(8) uint64_t value_empty;

  __device__ void Init() {
    constexpr uint32_t kGroupArrivals = kWarpgroup / kWarp * kWarpArrivals;
    constexpr uint32_t kConsumerArrivals = Config::kGroups * kGroupArrivals;
    const auto init = [](uint64_t& full, uint64_t& empty, uint32_t writers, uint32_t readers) {
      ptx::MbarrierInit(ptx::SharedAddress(&full), writers);
      ptx::MbarrierInit(ptx::SharedAddress(&empty), readers);
    };
    for (int i = 0; i < Config::kQueryStages; ++i) {
      init(query_full[i], query_empty[i], 1, kConsumerArrivals);
    }
    for (int i = 0; i < Config::kGradOutStages; ++i) {
      init(grad_out_full[i], grad_out_empty[i], 1, kConsumerArrivals);
    }
    for (int i = 0; i < kSlots; ++i) {
      init(weights_full[i], weights_empty[i], kGroupArrivals, kGroupArrivals);
    }
    for (int i = 0; i < kListEntries; ++i) init(entry_full[i], entry_empty[i], 1, 1);
    init(key_full, key_empty, 1, kConsumerArrivals);
    init(value_full, value_empty, 1, kConsumerArrivals);
  }
};

enum class WideSum : int { kGradValue, kGradKey };

// A warpgroup that sums one of the two gradients.
template <typename Config, WideSum kSum>
class WideKeyGroup {
 public:
  using Element = typename Config::Element;
  using Shared = WideKeysShared<Config>;
  static constexpr int kRows = Config::kRows;
  static constexpr int kHeadDim = Config::kHeadDim;

  __device__ __forceinline__ WideKeyGroup(const WideBackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared) {}

  __device__ __forceinline__ void Run() {
    for (uint32_t count = 0;; ++count) {
      const uint32_t parity = count % 2;
      Wait(shared_->key_full, parity);
      if (shared_->items[parity].key_begin == kNoMoreItems) break;
      // Where an item is said is given away with the key: a group that does not read the key gives
      // it when it has read of the item before for the last time. Likewise the value.
      if constexpr (kSum == WideSum::kGradKey) {
        Arrive(shared_->key_empty);
        Wait(shared_->value_full, parity);
      } else {
        Arrive(shared_->value_empty);
      }
      RunItem(parity);
    }
  }

 private:
  static constexpr uint32_t kTileBytes = kRows * kHeadDim * sizeof(Element);

  static __device__ __forceinline__ int Thread() { return ptx::ThreadIndex() % kWarpgroup; }
  static __device__ __forceinline__ int Lane() { return ptx::ThreadIndex() % kWarp; }

  static __device__ __forceinline__ void Wait(const uint64_t& barrier, uint32_t parity) {
    ptx::MbarrierWait(ptx::SharedAddress(&barrier), parity);
  }

  // Once all lanes have read what the barrier gives away.
  static __device__ __forceinline__ void Arrive(const uint64_t& barrier) {
    __syncwarp();
    if (kEveryLaneArrives || Lane() == 0) ptx::MbarrierArrive(ptx::SharedAddress(&barrier));
  }

  __device__ __forceinline__ uint32_t Keys() const {
    return ptx::SharedAddress(kSum == WideSum::kGradValue ? shared_->key : shared_->value);
  }
  __device__ __forceinline__ uint32_t Query() const {
    return ptx::SharedAddress(shared_->query) + query_.stage * kTileBytes;
  }
  __device__ __forceinline__ uint32_t GradOut() const {
    return ptx::SharedAddress(shared_->grad_out) + grad_out_.stage * kTileBytes;
  }

  __device__ __forceinline__ void RunItem(uint32_t parity) {
    float sums[kHeadDim / 2];
    ptx::WgmmaDefine(sums);
    uint32_t held[Config::kHeld][4];
    LoadHeld<kHeadDim>(Keys(), Thread(), held);
    bool keep = false;
    uint32_t flags = 0;
    do {
      uint32_t cells[kWideCells / 2];
      Wait(shared_->query_full[query_.stage], query_.parity);
      flags = shared_->steps[query_.stage].flags;
      if constexpr (kSum == WideSum::kGradValue) {
        FormWeights(flags, held, cells);
        Wait(shared_->grad_out_full[grad_out_.stage], grad_out_.parity);
        Sum(cells, GradOut(), keep, sums);
      } else {
        Wait(shared_->grad_out_full[grad_out_.stage], grad_out_.parity);
        FormGradScores(flags, held, cells);
        Sum(cells, Query(), keep, sums);
      }
      // The tile that was summed over; the other one was given away before.
      Arrive(kSum == WideSum::kGradValue ? shared_->grad_out_empty[grad_out_.stage]
                                         : shared_->query_empty[query_.stage]);
      query_.Advance();
      grad_out_.Advance();
      slot_.Advance();
      keep = true;
    } while ((flags & kLastStep) == 0);
    if ((flags & kDeadStep) != 0) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) sums[i] = 0.0f;
    }
    Store(shared_->items[parity], sums);
  }

  __device__ __forceinline__ void Sum(const uint32_t (&cells)[kWideCells / 2],
                                      uint32_t tile,
                                      bool keep,
                                      float (&sums)[kHeadDim / 2]) const {
    ptx::WgmmaFence();
    AddTile<Element, kHeadDim>(cells, tile, keep, sums);
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(sums);
  }

  // result = this group's tile of keys times a tile of rows
  __device__ __forceinline__ void Multiply(const uint32_t (&held)[Config::kHeld][4],
                                           uint32_t rows,
                                           float (&result)[kWideCells]) const {
    ptx::WgmmaDefine(result);
    ptx::WgmmaFence();
    MultiplyTiles<Element, kHeadDim, Config::kHeld>(held, Keys(), rows, result);
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(result);
  }

  // P^T of the step, as operand and for the other group.
  __device__ __forceinline__ void FormWeights(uint32_t flags,
                                              const uint32_t (&held)[Config::kHeld][4],
                                              uint32_t (&weights)[kWideCells / 2]) const {
    float scores[kWideCells];
    Multiply(held, Query(), scores);
    if ((flags & kLastStep) != 0) Arrive(shared_->key_empty);
    if ((flags & kPartialStep) != 0) {
      Exponentiate<true>(scores, weights);
    } else {
      Exponentiate<false>(scores, weights);
    }
    Arrive(shared_->query_empty[query_.stage]);
    Wait(shared_->weights_empty[slot_.stage], slot_.parity ^ 1);
    uint4(&to)[Shared::kWeightQuads][kWarpgroup] = shared_->weights[slot_.stage];
#pragma unroll
    for (int i = 0; i < Shared::kWeightQuads; ++i) {
      to[i][Thread()] =
          make_uint4(weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3]);
    }
    Arrive(shared_->weights_full[slot_.stage]);
  }

  // A thread has rows 8 j + 2 (lane % 4) + {0, 1} of its two keys. Masked cells of rows that exist
  // become 0 as operands, in pairs: whatever their scores were, infinite or no numbers.
  template <bool kPartial>
  __device__ __forceinline__ void Exponentiate(const float (&scores)[kWideCells],
                                               uint32_t (&weights)[kWideCells / 2]) const {
    const float* terms = shared_->lse_log2[query_.stage] + Lane() % 4 * 2;
    const float scale = args_.both.scale_log2;
    uint32_t masked[2] = {0, 0};
    if constexpr (kPartial) FindMaskedRows(masked);
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(terms + 8 * j);
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const float* s = scores + 4 * j + 2 * key;
        uint32_t weight = Pack<Element>(ptx::Exp2(fmaf(s[0], scale, -lse.x)),
                                        ptx::Exp2(fmaf(s[1], scale, -lse.y)));
        if constexpr (kPartial) weight &= ~SpreadPair(masked[key], j);
        weights[2 * j + key] = weight;
      }
    }
  }

  // MaskedRows of the thread's two keys.
  __device__ __forceinline__ void FindMaskedRows(uint32_t (&masked)[2]) const {
    const int32_t row = shared_->steps[query_.stage].row_begin;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int4 bounds = shared_->bounds[query_.stage][FragmentRow() + 8 * i];
      masked[i] = MaskedRows<kRows>(bounds, row, Lane() % 4 * 2);
    }
  }

  // dS^T of the step, as operand.
  __device__ __forceinline__ void FormGradScores(uint32_t flags,
                                                 const uint32_t (&held)[Config::kHeld][4],
                                                 uint32_t (&cells)[kWideCells / 2]) const {
    float grads[kWideCells];
    Multiply(held, GradOut(), grads);
    if ((flags & kLastStep) != 0) Arrive(shared_->value_empty);
    Wait(shared_->weights_full[slot_.stage], slot_.parity);
    uint32_t weights[kWideCells / 2];
    const uint4(&from)[Shared::kWeightQuads][kWarpgroup] = shared_->weights[slot_.stage];
#pragma unroll
    for (int i = 0; i < Shared::kWeightQuads; ++i) {
      const uint4 quad = from[i][Thread()];
      weights[4 * i] = quad.x;
      weights[4 * i + 1] = quad.y;
      weights[4 * i + 2] = quad.z;
      weights[4 * i + 3] = quad.w;
    }
    Arrive(shared_->weights_empty[slot_.stage]);
    if ((flags & kPartialStep) != 0) {
      MultiplyByWeights<true>(grads, weights, cells);
    } else {
      MultiplyByWeights<false>(grads, weights, cells);
    }
    Arrive(shared_->grad_out_empty[grad_out_.stage]);
  }

  // Cells whose weight is 0, as that of a masked one, get 0, whatever their gradient is.
  template <bool kPartial>
  __device__ __forceinline__ void MultiplyByWeights(const float (&grads)[kWideCells],
                                                    const uint32_t (&weights)[kWideCells / 2],
                                                    uint32_t (&cells)[kWideCells / 2]) const {
    const float* terms = shared_->delta[grad_out_.stage] + Lane() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(terms + 8 * j);
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const float* d = grads + 4 * j + 2 * key;
        const float2 p = Unpack<Element>(weights[2 * j + key]);
        float x = p.x * (d[0] - delta.x);
        float y = p.y * (d[1] - delta.y);
        if constexpr (kPartial) {
          x = p.x == 0.0f ? 0.0f : x;
          y = p.y == 0.0f ? 0.0f : y;
        }
        cells[2 * j + key] = Pack<Element>(x, y);
      }
    }
  }

  __device__ __forceinline__ void Store(const ItemInfo& item,
                                        const float (&sums)[kHeadDim / 2]) const {
    constexpr bool kIsKey = kSum == WideSum::kGradKey;
    const TensorView& view = kIsKey ? args_.grad_key : args_.grad_value;
    Element* to = static_cast<Element*>(view.data) + item.batch * view.batch_stride +
                  item.share * view.head_stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t key = item.key_begin + FragmentRow() + 8 * i;
      StoreRow<Element, kHeadDim>(sums,
                                  i,
                                  kIsKey ? args_.both.softmax_scale : 1.0f,
                                  to + key * view.row_stride,
                                  key < args_.seqlen_k ? args_.both.head_dim : 0);
    }
  }

  const WideBackwardArguments& args_;
  Shared* shared_;
  RingPlace<Config::kQueryStages> query_;
  RingPlace<Config::kGradOutStages> grad_out_;
  RingPlace<kSlots> slot_;  // of P^T
};

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    WideKeysKernel(const __grid_constant__ WideBackwardArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = WideKeysShared<Config>;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* shared = reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    shared->Init();
    ptx::MbarrierInitFence();
  }
  __syncthreads();
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kWarpgroup / kWarp) {
    ptx::LowerRegisters<Config::kProducerRegisters>();
    if (warp == 0) {
      if (threadIdx.x == 0) BackwardLoader<Config, Shared>(args.both, shared).Run();
    } else if (warp == 1) {
      BackwardScheduler<Config, Shared>(args.both, shared).Run();
    }
  } else {
    ptx::RaiseRegisters<Config::kConsumerRegisters>();
    if (warp < 2 * kWarpgroup / kWarp) {
      WideKeyGroup<Config, WideSum::kGradValue>(args, shared).Run();
    } else {
      WideKeyGroup<Config, WideSum::kGradKey>(args, shared).Run();
    }
  }
#endif
}

}  // namespace flashmask::sm90a
