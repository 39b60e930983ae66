#pragma once

// Forward attention for sm_80 and newer: mma.sync and cp.async.
//
// A block computes 128 query rows of one head; each of its 4 warps owns 32 rows and all columns. It
// walks the live tiles of 64 keys only (live_tiles.cuh) and keeps the output, the running row
// maximum and the row sum in registers. K(i+1) is on its way while the softmax and P V of tile i
// run, V(i) while Q K runs. Blocks start longest first within sections of heads whose K and V fit
// the L2.
//
// Shared memory: query (kept all along, then the output on its way out), key, value: one swizzled
// tile each; bounds of the columns of two tiles; live tiles of a chunk of the sequence.
//
// Masked scores are -inf. The running maximum starts at a finite number, so a row without any key
// meets no inf - inf: its sum stays 0, and it gets out 0 and lse -inf.
// Source: FlashAttention-2, arXiv 2307.08691; FlashMask, arXiv 2410.01359.

#include "kernels/common/mask_plan.h"
#include "kernels/common/scale.h"
#include "kernels/common/work_order.cuh"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/mma_sync.h"
#include "kernels/sm80/arguments.h"
#include "kernels/sm80/fragments.cuh"
#include "kernels/sm80/live_tiles.cuh"
#include "kernels/sm80/shared_tile.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

struct ForwardArguments : AttentionArguments {
  TensorView out;
  float* softmax_lse;
  WorkOrder order;
};

constexpr float kLowestMax = -1e30f;
// A row maximum may lag this far (in powers of 2) before sums are rescaled: weights stay exact
// enough and below what 16 bits hold.
constexpr float kRescaleThreshold = 8.0f;

template <typename Config>
struct ForwardShared {
  using Element = typename Config::Element;
  alignas(128) Element query[Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element key[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element value[Config::kBlockColumns * Config::kHeadDim];
  alignas(16) int4 bounds[2][Config::kBlockColumns];
  LiveTiles<Config::kWarps, 256, uint16_t> live;
};

template <typename Config, bool kHalfLines>
class ForwardBlock {
 public:
  using Element = typename Config::Element;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kColumns = Config::kBlockColumns;
  static constexpr int kRowTiles = Config::kRowsPerWarp / 16;  // mma tiles of a warp's rows
  static constexpr int kRows = 2 * kRowTiles;                  // rows that a thread has a part of
  static constexpr int kScoreTiles = kColumns / 8;
  static constexpr int kOutTiles = kHeadDim / 8;

  __device__ ForwardBlock(const ForwardArguments& args, ForwardShared<Config>* shared)
      : args_(args),
        shared_(shared) {
    const WorkItem item = args.order.Item(blockIdx.x,
                                          args.plan,
                                          args.num_heads,
                                          args.heads_per_mask,
                                          args.num_heads_mask);
    batch_ = static_cast<int32_t>(item.batch);
    head_ = static_cast<int32_t>(item.head);
    mask_ = static_cast<int32_t>(item.mask);
    row_begin_ = static_cast<int32_t>(item.row_block) * Config::kBlockRows;
    rows_ = min(Config::kBlockRows, args.seqlen_q - row_begin_);
    key_ = Pointer(args.key, 0, head_ / args.heads_per_key);
    value_ = Pointer(args.value, 0, head_ / args.heads_per_key);
  }

  __device__ void Run() {
    LoadTileAsync<Config::kBlockRows, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(shared_->query),
        Pointer(args_.query, row_begin_, head_),
        args_.query.row_stride,
        rows_,
        args_.head_dim,
        threadIdx.x);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row_max_[r] = kLowestMax;
      row_sum_[r] = 0.0f;
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d) Clear(out_sum_[r][d]);
    }
    const TileRange* ranges = args_.plan.ranges + int64_t{mask_} * args_.plan.num_column_tiles;
    for (int begin = 0; begin < args_.plan.num_column_tiles; begin += shared_->live.kChunkTiles) {
      shared_->live.Collect(begin, args_.plan.num_column_tiles, [&](int tile) {
        return ClassifyTile(ranges[tile], row_begin_, row_begin_ + rows_);
      });
      __syncthreads();
      RunChunk(begin);
      __syncthreads();
    }
    // Query goes out of flight with the first key; in a block without live tiles nobody waited.
    ptx::CpAsyncCommit();
    ptx::CpAsyncWait<0>();
    __syncthreads();
    Finish();
  }

 private:
  __device__ __forceinline__ Element* Pointer(const TensorView& view,
                                              int64_t row,
                                              int64_t head) const {
    return static_cast<Element*>(view.data) + int64_t{batch_} * view.batch_stride +
           row * view.row_stride + head * view.head_stride;
  }

  __device__ __forceinline__ void RunChunk(int begin) {
    const int count = shared_->live.Count();
    if (count == 0) return;
    int32_t entry = shared_->live.Entry(0, begin);
    LoadKey(entry, 0);
    for (int i = 0; i < count; ++i) {
      const int32_t tile = entry / 2;
      const bool partial = entry % 2 != 0;
      ptx::CpAsyncWait<0>();
      __syncthreads();  // key (i) is there for all; value (i - 1) is read by none
      LoadValue(tile);
      float scores[kRowTiles][kScoreTiles][4];
      ComputeScores(scores);
      ptx::CpAsyncWait<0>();
      __syncthreads();  // value (i) is there for all; key (i) is read by none
      if (i + 1 < count) {
        entry = shared_->live.Entry(i + 1, begin);
        LoadKey(entry, (i + 1) % 2);
      }
      if (partial) MaskScores(shared_->bounds[i % 2], scores);
      UpdateSoftmax(scores);
      AddWeightedValues(scores);
    }
  }

  __device__ __forceinline__ void LoadKey(int32_t entry, int slot) {
    const int32_t tile = entry / 2;
    const int64_t begin = static_cast<int64_t>(tile) * kColumns;
    LoadTileAsync<kColumns, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(shared_->key),
        key_ + begin * args_.key.row_stride,
        args_.key.row_stride,
        static_cast<int>(min(int64_t{kColumns}, args_.seqlen_k - begin)),
        args_.head_dim,
        threadIdx.x);
    if (entry % 2 != 0 && threadIdx.x < kColumns) {
      const int64_t column =
          (int64_t{mask_} * args_.plan.num_column_tiles + tile) * kColumns + threadIdx.x;
      ptx::CpAsync16(ptx::SharedAddress(&shared_->bounds[slot][threadIdx.x]),
                     args_.plan.bounds + column,
                     true);
    }
    ptx::CpAsyncCommit();
  }

  __device__ __forceinline__ void LoadValue(int32_t tile) {
    const int64_t begin = static_cast<int64_t>(tile) * kColumns;
    LoadTileAsync<kColumns, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(shared_->value),
        value_ + begin * args_.value.row_stride,
        args_.value.row_stride,
        static_cast<int>(min(int64_t{kColumns}, args_.seqlen_k - begin)),
        args_.head_dim,
        threadIdx.x);
    ptx::CpAsyncCommit();
  }

  __device__ __forceinline__ void ComputeScores(float (&scores)[kRowTiles][kScoreTiles][4]) {
    const uint32_t query = LeftAddress<kHeadDim>(ptx::SharedAddress(shared_->query),
                                                 Warp() * Config::kRowsPerWarp,
                                                 Lane());
    const uint32_t key = RightRowsAddress<kHeadDim>(ptx::SharedAddress(shared_->key), Lane());
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) Clear(scores[r][n]);
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        ptx::LdMatrixX4(a[r], Step<kHeadDim>(query, r * 16, 2 * k));
      }
#pragma unroll
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4(b, Step<kHeadDim>(key, n * 8, 2 * k));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          ptx::MmaM16N8K16<Element>(scores[r][n], a[r], b[0], b[1]);
          ptx::MmaM16N8K16<Element>(scores[r][n + 1], a[r], b[2], b[3]);
        }
      }
    }
    if (args_.negate) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) Negate(scores[r][n]);
      }
    }
  }

  __device__ __forceinline__ void MaskScores(const int4* bounds,
                                             float (&scores)[kRowTiles][kScoreTiles][4]) const {
    const int32_t first_row = row_begin_ + Row(0);
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int4 column = bounds[n * 8 + Lane() % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int32_t row = first_row + r / 2 * 16 + r % 2 * 8;
          float& score = scores[r / 2][n][r % 2 * 2 + e];
          score = IsMaskedRow<kHalfLines>(column, row) ? -INFINITY : score;
        }
      }
    }
  }

  __device__ __forceinline__ void UpdateSoftmax(float (&scores)[kRowTiles][kScoreTiles][4]) {
    float tile_max[kRows];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float largest = scores[r / 2][0][r % 2 * 2];
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
        largest = fmaxf(largest, scores[r / 2][n][r % 2 * 2]);
        largest = fmaxf(largest, scores[r / 2][n][r % 2 * 2 + 1]);
      }
      tile_max[r] = QuadMax(largest);
      rescale |= (tile_max[r] - row_max_[r]) * args_.scale_log2 > kRescaleThreshold;
    }
    if (__any_sync(0xffffffffu, rescale)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) RaiseMax(r, fmaxf(row_max_[r], tile_max[r]));
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float offset = -row_max_[r] * args_.scale_log2;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& score = scores[r / 2][n][r % 2 * 2 + e];
          score = Exp2(fmaf(score, args_.scale_log2, offset));
          sum += score;
        }
      }
      row_sum_[r] += sum;
    }
  }

  __device__ __forceinline__ void RaiseMax(int r, float new_max) {
    const float factor = Exp2((row_max_[r] - new_max) * args_.scale_log2);
    row_max_[r] = new_max;
    row_sum_[r] *= factor;
#pragma unroll
    for (int d = 0; d < kOutTiles; ++d) {
      out_sum_[r / 2][d][r % 2 * 2] *= factor;
      out_sum_[r / 2][d][r % 2 * 2 + 1] *= factor;
    }
  }

  __device__ __forceinline__ void AddWeightedValues(
      const float (&weights)[kRowTiles][kScoreTiles][4]) {
    const uint32_t value =
        RightColumnsAddress<kHeadDim>(ptx::SharedAddress(shared_->value), Lane());
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        LeftFromSums<Element>(weights[r][2 * k], weights[r][2 * k + 1], a[r]);
      }
      AddDepth<Element, kHeadDim>(out_sum_, a, value, k * 16);
    }
  }

  // A warp writes its own rows only, over query rows that no other warp reads.
  __device__ __forceinline__ void Finish() {
    const uint32_t out = ptx::SharedAddress(shared_->query);
    float* lse = args_.softmax_lse + (int64_t{batch_} * args_.num_heads + head_) * args_.seqlen_q;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = QuadSum(row_sum_[r]);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = Row(r);
      if (Lane() % 4 == 0 && row < rows_) {
        lse[row_begin_ + row] =
            sum == 0.0f ? -INFINITY : (row_max_[r] * args_.scale_log2 + log2f(sum)) * kLn2;
      }
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d) {
        const uint32_t pair = Pack<Element>(out_sum_[r / 2][d][r % 2 * 2] * factor,
                                            out_sum_[r / 2][d][r % 2 * 2 + 1] * factor);
        StoreShared(out + TileOffset<kHeadDim>(row, d) + Lane() % 4 * 4, pair);
      }
    }
    __syncwarp();
    Element* destination = Pointer(args_.out, row_begin_, head_);
    constexpr int kWarpRows = Config::kRowsPerWarp;
    const int first = Warp() * kWarpRows;
    StoreTile<kWarpRows, kHeadDim, 32>(out + TileOffset<kHeadDim>(first, 0),
                                       destination + first * args_.out.row_stride,
                                       args_.out.row_stride,
                                       rows_ - first,
                                       args_.head_dim,
                                       Lane());
  }

  // Row of the block that this thread holds as its row `r`.
  static __device__ __forceinline__ int Row(int r) {
    return Warp() * Config::kRowsPerWarp + r / 2 * 16 + r % 2 * 8 + Lane() / 4;
  }

  static __device__ __forceinline__ int Warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int Lane() { return threadIdx.x % 32; }

  const ForwardArguments& args_;
  ForwardShared<Config>* shared_;
  int32_t batch_;
  int32_t head_;
  int32_t mask_;
  int32_t row_begin_;
  int32_t rows_;
  const Element* key_;
  const Element* value_;
  float out_sum_[kRowTiles][kOutTiles][4];
  float row_max_[kRows];
  float row_sum_[kRows];  // this thread's part until Finish
};

template <typename Config, bool kHalfLines>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    ForwardKernel(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  ForwardBlock<Config, kHalfLines> block(args, reinterpret_cast<ForwardShared<Config>*>(memory));
  block.Run();
}

}  // namespace flashmask::sm80
