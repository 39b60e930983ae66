#pragma once

// What the scheduler warp of the sm90a backward does while its list is full: it prepares the rows
// of sections of heads that come later, and converts grad_query of those that are done. Section by
// section the float sums are cleared, added up and converted while they are in the L2, beside the
// products, where the kernels before and after have the memory to themselves and nothing to
// compute.
//
// A task is a step of rows of one query head; tasks are numbered so that the rows of section
// s + kSectionsAhead come before the conversion of section s, and are taken off a counter.

#include "kernels/common/device_math.cuh"
#include "kernels/common/scale.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_math.cuh"
#include "kernels/sm90a/backward_shared.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

template <typename Config>
class BackwardHelper {
 public:
  using Element = typename Config::Element;
  using Shared = BackwardShared<Config>;

  __device__ __forceinline__ BackwardHelper(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        is_finished_(args.fusion.num_sections == 0) {
    if (is_finished_) return;
    auto* zeros = reinterpret_cast<uint4*>(shared_->zeros);
    for (int i = lane_; i < Shared::kZeroBytes / 16; i += kWarp) zeros[i] = make_uint4(0, 0, 0, 0);
    ptx::FenceProxyAsync();
    __syncwarp();
  }

  __device__ __forceinline__ bool is_finished() const { return is_finished_; }

  // Tells whether the rows of a section are prepared; sections are asked about in order.
  __device__ __forceinline__ bool IsReady(int32_t section) {
    if (section <= ready_section_ || args_.fusion.num_sections == 0) return true;
    if (Read(args_.fusion.prepared + section) != TilesOf(section)) return false;
    FenceProxyGlobal();
    ready_section_ = section;
    return true;
  }

  // A part of a task, if there is one that can be done.
  __device__ __forceinline__ void Step() {
    if (is_finished_) return;
    const BackwardFusion& fusion = args_.fusion;
    if (task_ == kNone) {
      if (lane_ == 0) task_ = atomicAdd(fusion.next_task, 1);
      task_ = __shfl_sync(kAllLanes, task_, 0);
      part_ = 0;
    }
    const int32_t section = task_ / (2 * fusion.section_tiles);
    const int32_t index = task_ % (2 * fusion.section_tiles);
    if (section >= fusion.num_sections - kSectionsAhead) {
      is_finished_ = true;
      return;
    }
    bool ends;
    if (index < fusion.section_tiles) {
      ends = index >= TilesOf(section + kSectionsAhead);
      if (!ends) {
        PrepareRows((section + kSectionsAhead) * fusion.section_tiles + index);
        ends = ++part_ == kPrepareParts;
        if (ends) Announce(fusion.prepared + section + kSectionsAhead);
      }
    } else {
      // All sections but the last are of the same size.
      if (part_ == 0 && Read(fusion.done + section) != DoneCount(section)) return;
      ConvertSums(section * fusion.section_tiles + index - fusion.section_tiles);
      ends = ++part_ == kConvertParts;
    }
    if (ends) task_ = kNone;
  }

  // How often an item of the section is announced in BackwardFusion::done: once by each reducer.
  __device__ __forceinline__ int32_t DoneCount(int32_t section) const {
    const int32_t first = section * args_.heads_per_section;
    const int32_t heads = min(args_.heads_per_section, args_.num_heads_k_total - first);
    return heads * args_.plan.num_key_blocks * Config::kGroups;
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int kRows = Config::kRows;
  static constexpr int kPartRows = Config::kHelperRows;
  static constexpr int kPrepareParts = kRows / kPartRows;
  static constexpr int kConvertParts = 4;
  static constexpr int kBoxes = Config::kHeadDim / kSwizzleColumns;
  static constexpr uint32_t kBoxBytes = kPartRows * kSwizzleBytes;
  static constexpr uint32_t kPartBytes = 2 * kBoxes * kBoxBytes;
  static constexpr uint32_t kTileBytes = Config::kTileFloats * sizeof(float);
  static_assert(kPartBytes == Shared::kHelperBytes, "out and grad_out of a part fill the buffer");
  static_assert(kTileBytes == kConvertParts * Shared::kHelperBytes, "so does a part of the sums");

  __device__ __forceinline__ int32_t Read(const int32_t* count) const {
    int32_t value = 0;
    if (lane_ == 0) value = LoadAcquire(count);
    return __shfl_sync(kAllLanes, value, 0);
  }

  __device__ __forceinline__ int32_t TilesOf(int32_t section) const {
    const int32_t first = section * args_.heads_per_section;
    const int32_t heads = min(args_.heads_per_section, args_.num_heads_k_total - first);
    return heads * args_.heads_per_key * args_.num_steps;
  }

  __device__ __forceinline__ uint32_t Buffer() const { return ptx::SharedAddress(shared_->helper); }

  // All lanes: the buffer is filled by what lane 0 starts in `load`.
  template <typename Load>
  __device__ __forceinline__ void Fill(uint32_t bytes, const Load& load) {
    const uint32_t full = ptx::SharedAddress(&shared_->helper_full);
    __syncwarp();  // all lanes have read what was there
    if (lane_ == 0) {
      ptx::MbarrierArriveExpect(full, bytes);
      load(full);
    }
    __syncwarp();
    ptx::MbarrierWait(full, parity_);
    __syncwarp();  // the parity is kept in a register that the warp shares
    parity_ ^= 1;
  }

  // lse and delta of some rows of a step; with the first part zeros for its sums.
  __device__ __forceinline__ void PrepareRows(int32_t tile) {
    const int32_t head_of_all = tile / args_.num_steps;
    const int32_t head = head_of_all % args_.num_heads;
    const int32_t batch = head_of_all / args_.num_heads;
    const int32_t row_begin = tile % args_.num_steps * kRows + part_ * kPartRows;
    if (part_ == 0 && lane_ == 0) {
      char* sums = reinterpret_cast<char*>(args_.grad_query_sum) + int64_t{tile} * kTileBytes;
#pragma unroll 1
      for (uint32_t i = 0; i < kTileBytes; i += Shared::kZeroBytes) {
        ptx::BulkStore(sums + i, ptx::SharedAddress(shared_->zeros), Shared::kZeroBytes);
      }
      ptx::BulkCommit();
    }
    Fill(kPartBytes, [&](uint32_t full) {
#pragma unroll
      for (int box = 0; box < kBoxes; ++box) {
        const uint32_t to = Buffer() + box * kBoxBytes;
        const int32_t column = box * kSwizzleColumns;
        ptx::TmaLoad4d(to, &args_.fusion.out, column, head, row_begin, batch, full);
        ptx::TmaLoad4d(to + kBoxes * kBoxBytes,
                       &args_.fusion.grad_out,
                       column,
                       head,
                       row_begin + args_.grad_out_row_shift,
                       batch,
                       full);
      }
    });
    constexpr int kRowLanes = kSwizzleBytes / 16;  // lanes that share a row
    constexpr int kPassRows = kWarp / kRowLanes;
    float delta = 0.0f;  // of row lane_
#pragma unroll 1
    for (int pass = 0; pass < kPartRows / kPassRows; ++pass) {
      const int row = pass * kPassRows + lane_ / kRowLanes;
      const uint32_t at = row * kSwizzleBytes + ((lane_ % kRowLanes ^ row % 8) * 16);
      const auto* from = reinterpret_cast<const char*>(shared_->helper) + at;
      float sum = 0.0f;
#pragma unroll 1
      for (int box = 0; box < kBoxes; ++box) {
        const auto* out = reinterpret_cast<const uint4*>(from + box * kBoxBytes);
        const auto* grad_out = reinterpret_cast<const uint4*>(from + (kBoxes + box) * kBoxBytes);
        sum += Dot8<Element>(*out, *grad_out);
      }
#pragma unroll
      for (int lanes = kRowLanes / 2; lanes > 0; lanes /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      const float of_lane = __shfl_sync(kAllLanes, sum, lane_ % kPassRows * kRowLanes);
      if (lane_ / kPassRows == pass) delta = of_lane;
    }
    // Its rows came as zeros, but what they were multiplied with may be no number.
    if (args_.grad_out_row_shift != 0) delta = 0.0f;
    if (lane_ < kPartRows) {
      const int32_t row = row_begin + lane_;
      const int64_t index = int64_t{head_of_all} * args_.seqlen_q + row;
      const bool inside = row < args_.seqlen_q;
      const bool has_less = inside && args_.fusion.grad_softmax_lse != nullptr;
      const float natural = inside ? args_.fusion.softmax_lse[index] : -INFINITY;
      const float less = has_less ? args_.fusion.grad_softmax_lse[index] : 0.0f;
      const int64_t to = int64_t{head_of_all} * args_.terms.padded_rows + row;
      args_.terms.lse_log2[to] = natural == -INFINITY ? INFINITY : natural * kLog2E;
      args_.terms.delta[to] = delta - less;
    }
  }

  // All of a step's rows are there for others to read.
  __device__ __forceinline__ void Announce(int32_t* count) const {
    __syncwarp();
    if (lane_ == 0) {
      ptx::BulkWait<0>();
      FenceProxyGlobal();
      AddRelease(count, 1);
    }
    __syncwarp();
  }

  // A quarter of a step's sums to the tensor: four quads of every thread of half of the sums, see
  // FinishGradQuery.
  __device__ __forceinline__ void ConvertSums(int32_t tile) {
    constexpr bool kHalfColumns = Config::kHeadDim == 128;
    constexpr int kQuads = 4;
    const int half = part_ / 2;
    Fill(Shared::kHelperBytes, [&](uint32_t full) {
      FenceProxyGlobal();
      const char* sums = reinterpret_cast<const char*>(args_.grad_query_sum) +
                         int64_t{tile} * kTileBytes + part_ * Shared::kHelperBytes;
      ptx::BulkLoad(Buffer(), sums, Shared::kHelperBytes, full);
    });
    const TensorView& view = args_.grad_query;
    const int32_t head_of_all = tile / args_.num_steps;
    const int32_t column =
        8 * (part_ % 2 * kQuads + lane_ % kQuads) + (kHalfColumns ? half * kSwizzleColumns : 0);
    int32_t row = tile % args_.num_steps * kRows + lane_ / 4 + (kHalfColumns ? 0 : half * 64);
    Element* to = static_cast<Element*>(view.data) +
                  int64_t{head_of_all / args_.num_heads} * view.batch_stride +
                  int64_t{head_of_all % args_.num_heads} * view.head_stride +
                  row * view.row_stride + column;
    // Element pairs of a quad: the first of `row`, the second of the row 8 further on.
    const auto* from = reinterpret_cast<const float2*>(shared_->helper) + 2 * lane_;
#pragma unroll 1
    for (int pass = 0; pass < 2 * kWarpgroup / kWarp; ++pass) {
      uint32_t pairs[kQuads];
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float2 sums = from[i * 2 * kWarpgroup];
        pairs[i] = Pack<Element>(sums.x * args_.softmax_scale, sums.y * args_.softmax_scale);
      }
      Transpose(pairs);
      if (column < args_.head_dim && row < args_.seqlen_q) {
        *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
      row += 8;
      to += 8 * view.row_stride;
      from += pass % 2 == 0 ? 1 : 2 * kWarp - 1;
    }
  }

  // Element i of lane j of four neighbours becomes element j of lane i.
  __device__ __forceinline__ void Transpose(uint32_t (&values)[4]) const {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
      const bool odd = (lane_ & step) != 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((i & step) != 0) continue;
        uint32_t& low = values[i];
        uint32_t& high = values[i + step];
        const uint32_t got = __shfl_xor_sync(kAllLanes, odd ? low : high, step);
        if (odd) {
          low = got;
        } else {
          high = got;
        }
      }
    }
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int lane_;
  bool is_finished_;
  int32_t ready_section_ = kSectionsAhead - 1;
  int32_t task_ = kNone;
  int32_t part_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace flashmask::sm90a
