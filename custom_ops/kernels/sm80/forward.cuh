#pragma once

// Forward attention for sm_80 and newer: mma.sync and cp.async.
//
// A block computes 64 or 128 query rows of one head (tile_config.h); each of its 4 or 8 warps owns
// 16 or 32 rows and all columns. It walks the live tiles of 64 keys only (live_tiles.cuh) and keeps
// the output, the running row maximum and the row sum in registers. K(i+1) is on its way while the
// softmax and P V of tile i run, V(i) while Q K runs. Blocks start longest first within sections of
// heads whose K and V fit the L2.
//
// With kFewRows (few_rows.h) its rows are packed ones: row p is row p / packed_heads of head
// p % packed_heads of the group, so that rows of the mask ascend. It takes an even share of the
// live tiles, in order, and where there are more shares than one leaves what they give to
// combine_splits.cu.
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
#include "kernels/ptx/memory.h"
#include "kernels/sm80/arguments.h"
#include "kernels/sm80/combine_splits.h"
#include "kernels/sm80/few_rows.h"
#include "kernels/sm80/forward_sums.cuh"
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
  // With kFewRows:
  FewRows cut;
  SplitResults parts;  // written where cut.splits > 1
};

template <typename Config>
struct ForwardShared {
  using Element = typename Config::Element;
  alignas(128) Element query[Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element key[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element value[Config::kBlockColumns * Config::kHeadDim];
  alignas(16) int4 bounds[2][Config::kBlockColumns];
  LiveTiles<Config::kWarps, Config::kListTilesPerWarp, uint16_t> live;
};

template <typename Config, bool kHalfLines, bool kFewRows>
class ForwardBlock {
 public:
  using Element = typename Config::Element;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kColumns = Config::kBlockColumns;
  using Sums = ForwardSums<Config>;
  using Scores = typename Sums::Scores;
  static constexpr int kRowTiles = Sums::kRowTiles;
  static constexpr int kRows = Sums::kRows;
  static constexpr int kScoreTiles = Sums::kScoreTiles;
  static constexpr int kOutTiles = Sums::kOutTiles;
  static constexpr int kChunkTiles = decltype(ForwardShared<Config>::live)::kChunkTiles;

  __device__ ForwardBlock(const ForwardArguments& args, ForwardShared<Config>* shared)
      : args_(args),
        shared_(shared) {
    if constexpr (kFewRows) {
      TakePackedRows();
    } else {
      const WorkItem item = args.order.Item<int64_t>(blockIdx.x,
                                                     args.plan,
                                                     args.num_heads,
                                                     args.heads_per_mask,
                                                     args.num_heads_mask);
      batch_ = static_cast<int32_t>(item.batch);
      head_ = static_cast<int32_t>(item.head);
      mask_ = static_cast<int32_t>(item.mask);
      row_begin_ = static_cast<int32_t>(item.row_block) * Config::kBlockRows;
      rows_ = min(Config::kBlockRows, args.seqlen_q - row_begin_);
    }
    key_ = Pointer(args.key, 0, head_ / args.heads_per_key);
    value_ = Pointer(args.value, 0, head_ / args.heads_per_key);
  }

  __device__ void Run() {
    LoadQuery();
    sums_.Start();
    if constexpr (kFewRows) {
      RunShare();
    } else {
      for (int begin = 0; begin < args_.plan.num_column_tiles; begin += kChunkTiles) {
        CollectTiles(begin);
        __syncthreads();
        RunChunk(begin, 0, shared_->live.Count());
        __syncthreads();
      }
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

  __device__ __forceinline__ void LoadQuery() {
    if constexpr (kFewRows) {
      ForPackedChunks<Config::kBlockRows, Config::kThreads>(
          threadIdx.x,
          0,
          [&](int row, int chunk, int32_t query_row, int32_t head, bool valid) {
            ptx::CpAsync16(ptx::SharedAddress(shared_->query) + TileOffset<kHeadDim>(row, chunk),
                           Pointer(args_.query, query_row, head) + chunk * kChunkElements,
                           valid);
          });
      return;
    }
    LoadTileAsync<Config::kBlockRows, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(shared_->query),
        Pointer(args_.query, row_begin_, head_),
        args_.query.row_stride,
        rows_,
        args_.head_dim,
        threadIdx.x);
  }

  // Class of a tile of columns for all rows of the block.
  __device__ __forceinline__ TileClass Classify(int tile) const {
    const TileRange& range = args_.plan.ranges[int64_t{mask_} * args_.plan.num_column_tiles + tile];
    if constexpr (kFewRows) {
      const int32_t last = (row_begin_ + rows_ - 1) / args_.cut.packed_heads;
      return ClassifyTile(range, row_begin_ / args_.cut.packed_heads, last + 1);
    }
    return ClassifyTile(range, row_begin_, row_begin_ + rows_);
  }

  __device__ __forceinline__ void CollectTiles(int begin) {
    shared_->live.Collect(begin, args_.plan.num_column_tiles, [&](int tile) {
      return Classify(tile);
    });
  }

  // Live tiles [first, last) of the list.
  __device__ __forceinline__ void RunChunk(int begin, int first, int last) {
    if (first >= last) return;
    int32_t entry = shared_->live.Entry(first, begin);
    LoadKey(entry, 0);
    for (int i = first; i < last; ++i) {
      const int32_t tile = entry / 2;
      const bool partial = entry % 2 != 0;
      ptx::CpAsyncWait<0>();
      __syncthreads();  // key (i) is there for all; value (i - 1) is read by none
      LoadValue(tile);
      Scores scores;
      ComputeScores(scores);
      ptx::CpAsyncWait<0>();
      __syncthreads();  // value (i) is there for all; key (i) is read by none
      const int slot = (i - first) % 2;
      if (i + 1 < last) {
        entry = shared_->live.Entry(i + 1, begin);
        LoadKey(entry, slot ^ 1);
      }
      if (partial) MaskScores(shared_->bounds[slot], scores);
      sums_.Update(args_.scale_log2, scores);
      sums_.AddWeighted(scores,
                        RightColumnsAddress<kHeadDim>(ptx::SharedAddress(shared_->value), Lane()));
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

  __device__ __forceinline__ void ComputeScores(Scores& scores) {
    const uint32_t query = LeftAddress<kHeadDim>(ptx::SharedAddress(shared_->query),
                                                 Warp() * Config::kRowsPerWarp,
                                                 Lane());
    const uint32_t key = RightRowsAddress<kHeadDim>(ptx::SharedAddress(shared_->key), Lane());
    MultiplyRows<Element, kHeadDim>(query, key, scores, [](int) {});
    if (args_.negate) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int n = 0; n < kScoreTiles; ++n) Negate(scores[r][n]);
      }
    }
  }

  __device__ __forceinline__ void MaskScores(const int4* bounds, Scores& scores) const {
    int32_t rows[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      rows[r] = row_begin_ + Row(r);
      if (kFewRows) rows[r] /= args_.cut.packed_heads;
    }
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int4 column = bounds[n * 8 + Lane() % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          float& score = scores[r / 2][n][r % 2 * 2 + e];
          score = IsMaskedRow<kHalfLines>(column, rows[r]) ? -INFINITY : score;
        }
      }
    }
  }

  // A warp writes its own rows only, over query rows that no other warp reads.
  __device__ __forceinline__ void Finish() {
    if constexpr (kFewRows) {
      if (args_.cut.splits > 1) {
        FinishPart();
        return;
      }
    }
    const uint32_t out = ptx::SharedAddress(shared_->query);
    float* lse = args_.softmax_lse + (int64_t{batch_} * args_.num_heads + head_) * args_.seqlen_q;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = QuadSum(sums_.row_sum[r]);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = Row(r);
      if (Lane() % 4 == 0 && row < rows_) {
        float* to = kFewRows ? args_.softmax_lse + PackedIndex(row) : lse + row_begin_ + row;
        *to = sum == 0.0f ? -INFINITY : (sums_.row_max[r] * args_.scale_log2 + log2f(sum)) * kLn2;
      }
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d) {
        const uint32_t pair = Pack<Element>(sums_.out_sum[r / 2][d][r % 2 * 2] * factor,
                                            sums_.out_sum[r / 2][d][r % 2 * 2 + 1] * factor);
        ptx::StoreShared(out + TileOffset<kHeadDim>(row, d) + Lane() % 4 * 4, pair);
      }
    }
    __syncwarp();
    constexpr int kWarpRows = Config::kRowsPerWarp;
    const int first = Warp() * kWarpRows;
    if constexpr (kFewRows) {
      ForPackedChunks<kWarpRows, 32>(
          Lane(),
          first,
          [&](int row, int chunk, int32_t query_row, int32_t head, bool valid) {
            Element* to = Pointer(args_.out, query_row, head) + chunk * kChunkElements;
            if (valid) {
              *reinterpret_cast<uint4*>(to) =
                  ptx::LoadSharedQuad(out + TileOffset<kHeadDim>(row, chunk));
            }
          });
      return;
    }
    Element* destination = Pointer(args_.out, row_begin_, head_);
    StoreTile<kWarpRows, kHeadDim, 32>(out + TileOffset<kHeadDim>(first, 0),
                                       destination + first * args_.out.row_stride,
                                       args_.out.row_stride,
                                       rows_ - first,
                                       args_.head_dim,
                                       Lane());
  }

  // With kFewRows: where a row of the block stands in softmax_lse.
  __device__ __forceinline__ int64_t PackedIndex(int row) const {
    const int32_t packed = row_begin_ + row;
    const int32_t head = head_ + packed % args_.cut.packed_heads;
    return (int64_t{batch_} * args_.num_heads + head) * args_.seqlen_q +
           packed / args_.cut.packed_heads;
  }

  // With kFewRows: which rows and which share of the live tiles are the block's.
  __device__ __forceinline__ void TakePackedRows() {
    const FewRows& cut = args_.cut;
    const int32_t item = static_cast<int32_t>(blockIdx.x) / cut.splits;
    const int32_t packed_heads_of_all = item / cut.row_blocks;
    const int32_t packed_per_batch = args_.num_heads / cut.packed_heads;
    split_ = static_cast<int32_t>(blockIdx.x) % cut.splits;
    batch_ = packed_heads_of_all / packed_per_batch;
    head_ = packed_heads_of_all % packed_per_batch * cut.packed_heads;
    mask_ = batch_ * args_.num_heads_mask + head_ / args_.heads_per_mask;
    row_begin_ = (cut.row_blocks - 1 - item % cut.row_blocks) * Config::kBlockRows;
    rows_ = min(Config::kBlockRows, args_.seqlen_q * cut.packed_heads - row_begin_);
  }

  // With kFewRows: calls `use(row of the block, chunk, row of the tensor, head, whether it is
  // there)` for the chunks of kRowsHere rows from `first` on, a part for each of kThreads.
  template <int kRowsHere, int kThreads, typename Use>
  __device__ __forceinline__ void ForPackedChunks(int thread, int first, Use use) const {
    constexpr int kChunks = kHeadDim / kChunkElements;
#pragma unroll 1
    for (int i = thread; i < kRowsHere * kChunks; i += kThreads) {
      const int row = first + i / kChunks;
      const int chunk = i % kChunks;
      const bool valid = row < rows_ && chunk * kChunkElements < args_.head_dim;
      const int32_t packed = valid ? row_begin_ + row : 0;
      use(row,
          chunk,
          packed / args_.cut.packed_heads,
          head_ + packed % args_.cut.packed_heads,
          valid);
    }
  }

  // With kFewRows: an even share of the live tiles.
  __device__ __forceinline__ void RunShare() {
    const int32_t tiles = args_.plan.num_column_tiles;
    const bool one_list = tiles <= kChunkTiles;
    int32_t live = 0;
    if (!one_list) live = CountLive();
    int32_t before = 0;  // live tiles of earlier lists
    for (int begin = 0; begin < tiles; begin += kChunkTiles) {
      CollectTiles(begin);
      __syncthreads();
      const int32_t count = shared_->live.Count();
      if (one_list) live = count;
      const int32_t first = ShareBegin(live, split_) - before;
      const int32_t last = ShareBegin(live, split_ + 1) - before;
      RunChunk(begin, max(first, 0), min(last, count));
      __syncthreads();
      before += count;
      if (last <= count) break;
    }
  }

  __device__ __forceinline__ int32_t ShareBegin(int32_t live, int32_t split) const {
    return static_cast<int32_t>(int64_t{live} * split / args_.cut.splits);
  }

  // All live tiles, counted by the whole block.
  __device__ __forceinline__ int32_t CountLive() {
    int32_t live = 0;
#pragma unroll 4
    for (int tile = threadIdx.x; tile < args_.plan.num_column_tiles; tile += Config::kThreads) {
      live += Classify(tile) != TileClass::kSkip;
    }
    live = __reduce_add_sync(0xffffffffu, live);
    if (Lane() == 0) shared_->live.counts[Warp()] = live;
    __syncthreads();
    live = shared_->live.Count();
    __syncthreads();
    return live;
  }

  // With kFewRows: the share's result, normalised, to where CombineSplits reads it.
  __device__ __forceinline__ void FinishPart() {
    const int64_t rows_of_all = static_cast<int64_t>(gridDim.x) / args_.cut.splits /
                                args_.cut.row_blocks * args_.cut.packed_heads * args_.seqlen_q;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = QuadSum(sums_.row_sum[r]);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = Row(r);
      if (row >= rows_) continue;
      const int64_t index = split_ * rows_of_all + PackedIndex(row);
      if (Lane() % 4 == 0) {
        args_.parts.lse_log2[index] =
            sum == 0.0f ? -INFINITY : sums_.row_max[r] * args_.scale_log2 + log2f(sum);
      }
      float* to = args_.parts.out + index * args_.head_dim + Lane() % 4 * 2;
#pragma unroll
      for (int d = 0; d < kOutTiles; ++d) {
        if (d * 8 >= args_.head_dim) continue;
        *reinterpret_cast<float2*>(to + d * 8) =
            make_float2(sums_.out_sum[r / 2][d][r % 2 * 2] * factor,
                        sums_.out_sum[r / 2][d][r % 2 * 2 + 1] * factor);
      }
    }
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
  int32_t split_;  // with kFewRows
  const Element* key_;
  const Element* value_;
  Sums sums_;
};

template <typename Config, bool kHalfLines, bool kFewRows>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    ForwardKernel(const __grid_constant__ ForwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  ForwardBlock<Config, kHalfLines, kFewRows> block(
      args,
      reinterpret_cast<ForwardShared<Config>*>(memory));
  block.Run();
}

}  // namespace flashmask::sm80
