#pragma once

// Gradients of attention for sm_80 and newer: mma.sync and cp.async.
//
// A block owns 128 keys of one key head. It walks the live steps of 64 query rows (live_tiles.cuh)
// of all query heads of the group, keeps grad_key and grad_value in registers, and adds each step's
// share of grad_query to a float buffer in global memory by reductions, so the order of those sums,
// and with it the last bits of grad_query, may change from run to run. Blocks start longest first.
//
// A step, with 8 warps:
//   S = Q K^T, dP = dO V^T   each warp 32 rows by 32 keys; weights P and gradients dS to shared
//   dV += P^T dO             each warp 32 keys by half of head_dim, in registers over all steps
//   dQ += dS K               each warp 32 rows by a quarter of head_dim, reduced to global memory
//   dK += dS^T Q             as dV
// Q(i + 1) is on its way during step i, dO(i + 1) from the end of dV on.
//
// Shared memory: key, value (all along, then grad_key and grad_value on their way out), query
// twice, grad_out, P, dS: swizzled tiles; lse and delta of two steps; bounds of the keys; live
// steps.
//
// The buffer of grad_query is laid out as the registers of a step's result lie, so that a warp's
// reduction covers whole lines: [row step][warp][register quad][lane][4]. ConvertGradQuery undoes
// that.
// Source: FlashAttention-2, arXiv 2307.08691, algorithm 2; FlashMask, arXiv 2410.01359.

#include "kernels/common/mask_plan.h"
#include "kernels/common/output_dot.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/mma_sync.h"
#include "kernels/sm80/fragments.cuh"
#include "kernels/sm80/live_tiles.cuh"
#include "kernels/sm80/shared_tile.cuh"
#include "kernels/common/work_order.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

// What a launch passes to the kernels: pointers to device memory, strides in elements.
struct BackwardArguments {
  TensorView query;
  TensorView key;
  TensorView value;
  TensorView grad_out;  // data null: zero
  TensorView grad_query;
  TensorView grad_key;
  TensorView grad_value;
  RowTerms terms;
  float* grad_query_sum;  // [B, Hq, row steps, 64 * kHeadDim], permuted
  int32_t seqlen_q;
  int32_t seqlen_k;
  int32_t head_dim;
  int32_t num_heads;
  int32_t num_heads_k;
  int32_t heads_per_key;
  int32_t heads_per_mask;
  int32_t num_heads_mask;
  float softmax_scale;
  float scale_log2;  // |softmax_scale| * log2(e), at least kSmallestScale
  bool negate;       // softmax_scale is negative
  MaskPlanView plan;
};

template <typename Config>
struct BackwardShared {
  using Element = typename Config::Element;
  alignas(128) Element key[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element value[Config::kBlockColumns * Config::kHeadDim];
  alignas(128) Element query[2][Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element grad_out[Config::kBlockRows * Config::kHeadDim];
  alignas(128) Element weights[Config::kBlockRows * Config::kBlockColumns];
  alignas(128) Element grad_scores[Config::kBlockRows * Config::kBlockColumns];
  alignas(16) float lse_log2[2][Config::kBlockRows];
  alignas(16) float delta[2][Config::kBlockRows];
  alignas(16) int4 bounds[Config::kBlockColumns];
  LiveTiles<Config::kWarps, 32> live;
};

template <typename Config, bool kHalfLines>
class BackwardBlock {
 public:
  using Element = typename Config::Element;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kRows = Config::kBlockRows;
  static constexpr int kKeys = Config::kBlockColumns;
  // mma tiles of a warp's part of each result: 16 rows by 8 columns
  static constexpr int kScoreRowTiles = kRows / Config::kScoreWarpRows / 16;
  static constexpr int kScoreColumnTiles = kKeys / Config::kScoreWarpColumns / 8;
  static constexpr int kQueryColumnTiles = kHeadDim / Config::kScoreWarpColumns / 8;
  static constexpr int kKeyRowTiles = kKeys / Config::kKeyWarpRows / 16;
  static constexpr int kKeyColumnTiles = kHeadDim / Config::kKeyWarpColumns / 8;
  using Scores = float[kScoreRowTiles][kScoreColumnTiles][4];
  using KeySums = float[kKeyRowTiles][kKeyColumnTiles][4];

  __device__ BackwardBlock(const BackwardArguments& args, BackwardShared<Config>* shared)
      : args_(args),
        shared_(shared) {
    // Heads run fastest: blocks at work together share a mask's rank, and queries of a head meet.
    const int32_t heads = args.plan.num_key_blocks;
    const int32_t head_of_all = static_cast<int32_t>(blockIdx.x) / heads;
    const int32_t rank = static_cast<int32_t>(blockIdx.x) % heads;
    batch_ = head_of_all / args.num_heads_k;
    head_k_ = head_of_all % args.num_heads_k;
    key_begin_ =
        args.plan.key_order[int64_t{Mask(head_k_ * args.heads_per_key)} * heads + rank] * kKeys;
    keys_ = min(kKeys, args.seqlen_k - key_begin_);
  }

  __device__ void Run() {
    LoadKeys();
#pragma unroll
    for (int r = 0; r < kKeyRowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < kKeyColumnTiles; ++d) {
        Clear(grad_key_[r][d]);
        Clear(grad_value_[r][d]);
      }
    }
    const int32_t num_steps = (args_.seqlen_q + kRows - 1) / kRows;
    for (int32_t g = 0; g < args_.heads_per_key; ++g) {
      const int32_t head = head_k_ * args_.heads_per_key + g;
      if (g == 0 || args_.heads_per_mask < args_.heads_per_key) LoadBounds(Mask(head));
      for (int32_t begin = 0; begin < num_steps; begin += shared_->live.kChunkTiles) {
        CollectSteps(Mask(head), begin, num_steps);
        __syncthreads();
        RunChunk(head);
        __syncthreads();
      }
    }
    ptx::CpAsyncWait<0>();
    __syncthreads();
    Finish(grad_key_, args_.softmax_scale, shared_->key, args_.grad_key);
    Finish(grad_value_, 1.0f, shared_->value, args_.grad_value);
  }

 private:
  static __device__ __forceinline__ int Warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int Lane() { return threadIdx.x % 32; }
  // Rows and columns of a warp's part: of scores and grad_query, of grad_key and grad_value.
  static __device__ __forceinline__ int ScoreRow() {
    return Warp() % Config::kScoreWarpRows * (kRows / Config::kScoreWarpRows);
  }
  static __device__ __forceinline__ int ScoreColumn() {
    return Warp() / Config::kScoreWarpRows * (kKeys / Config::kScoreWarpColumns);
  }
  static __device__ __forceinline__ int QueryColumn() {
    return Warp() / Config::kScoreWarpRows * (kHeadDim / Config::kScoreWarpColumns);
  }
  static __device__ __forceinline__ int KeyRow() {
    return Warp() % Config::kKeyWarpRows * (kKeys / Config::kKeyWarpRows);
  }
  static __device__ __forceinline__ int KeyColumn() {
    return Warp() / Config::kKeyWarpRows * (kHeadDim / Config::kKeyWarpColumns);
  }

  __device__ __forceinline__ int32_t Mask(int32_t head) const {
    return batch_ * args_.num_heads_mask + head / args_.heads_per_mask;
  }

  __device__ __forceinline__ Element* Pointer(const TensorView& view,
                                              int64_t row,
                                              int64_t head) const {
    return static_cast<Element*>(view.data) + int64_t{batch_} * view.batch_stride +
           row * view.row_stride + head * view.head_stride;
  }

  __device__ __forceinline__ void LoadKeys() {
    LoadTileAsync<kKeys, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->key),
                                                     Pointer(args_.key, key_begin_, head_k_),
                                                     args_.key.row_stride,
                                                     keys_,
                                                     args_.head_dim,
                                                     threadIdx.x);
    LoadTileAsync<kKeys, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->value),
                                                     Pointer(args_.value, key_begin_, head_k_),
                                                     args_.value.row_stride,
                                                     keys_,
                                                     args_.head_dim,
                                                     threadIdx.x);
    ptx::CpAsyncCommit();
  }

  // Bounds of the block's keys; those past the plan's last range mask every row.
  __device__ __forceinline__ void LoadBounds(int32_t mask) {
    __syncthreads();
    const int32_t planned = args_.plan.num_column_tiles * kPlanColumns;
    for (int i = threadIdx.x; i < kKeys; i += Config::kThreads) {
      const int32_t column = key_begin_ + i;
      shared_->bounds[i] = column < planned ? args_.plan.bounds[int64_t{mask} * planned + column]
                                            : make_int4(0, args_.seqlen_q, 0, 0);
    }
  }

  __device__ __forceinline__ void CollectSteps(int32_t mask, int32_t begin, int32_t num_steps) {
    const int32_t tile = key_begin_ / kPlanColumns;
    const TileRange* ranges = args_.plan.ranges + int64_t{mask} * args_.plan.num_column_tiles;
    const bool has_second = tile + 1 < args_.plan.num_column_tiles;
    const TileRange first = ranges[tile];
    const TileRange second = has_second ? ranges[tile + 1] : first;
    shared_->live.Collect(begin, num_steps, [&](int step) {
      const int32_t row = step * kRows;
      return ClassifyPair(first, second, has_second, row, min(row + kRows, args_.seqlen_q));
    });
  }

  __device__ __forceinline__ void RunChunk(int32_t head) {
    const int count = shared_->live.Count();
    if (count == 0) return;
    int32_t entry = shared_->live.Entry(0);
    LoadQuery(head, entry / 2, 0);
    LoadGradOut(head, entry / 2);
    for (int i = 0; i < count; ++i) {
      const int32_t step = entry / 2;
      const bool partial = entry % 2 != 0;
      const int slot = i % 2;
      ptx::CpAsyncWait<0>();
      __syncthreads();  // query (i), grad_out (i) are there; weights (i - 1) are read by none
      const bool more = i + 1 < count;
      if (more) {
        entry = shared_->live.Entry(i + 1);
        LoadQuery(head, entry / 2, slot ^ 1);
      }
      ComputeWeights(step, slot, partial);
      __syncthreads();  // weights and score gradients (i) are there
      AddTransposed(shared_->weights, ptx::SharedAddress(shared_->grad_out), grad_value_);
      __syncthreads();  // grad_out (i) is read by none
      if (more) LoadGradOut(head, entry / 2);
      AddGradQuery(head, step);
      AddTransposed(shared_->grad_scores, ptx::SharedAddress(shared_->query[slot]), grad_key_);
    }
  }

  __device__ __forceinline__ void LoadQuery(int32_t head, int32_t step, int slot) {
    const int32_t row = step * kRows;
    LoadTileAsync<kRows, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->query[slot]),
                                                     Pointer(args_.query, row, head),
                                                     args_.query.row_stride,
                                                     min(kRows, args_.seqlen_q - row),
                                                     args_.head_dim,
                                                     threadIdx.x);
    const int64_t index =
        (int64_t{batch_} * args_.num_heads + head) * args_.terms.padded_rows + row;
    constexpr int kFloats = 4;  // of a 16-byte copy
    constexpr int kCopies = kRows / kFloats;
    const int copy = threadIdx.x % kCopies * kFloats;
    if (threadIdx.x < kCopies) {
      ptx::CpAsync16(ptx::SharedAddress(&shared_->lse_log2[slot][copy]),
                     args_.terms.lse_log2 + index + copy,
                     true);
    } else if (threadIdx.x < 2 * kCopies) {
      ptx::CpAsync16(ptx::SharedAddress(&shared_->delta[slot][copy]),
                     args_.terms.delta + index + copy,
                     true);
    }
    ptx::CpAsyncCommit();
  }

  __device__ __forceinline__ void LoadGradOut(int32_t head, int32_t step) {
    const int32_t row = step * kRows;
    const bool given = args_.grad_out.data != nullptr;
    LoadTileAsync<kRows, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->grad_out),
                                                     Pointer(args_.grad_out, row, head),
                                                     args_.grad_out.row_stride,
                                                     given ? min(kRows, args_.seqlen_q - row) : 0,
                                                     args_.head_dim,
                                                     threadIdx.x);
    ptx::CpAsyncCommit();
  }

  // A step's rows of `left` times the keys' rows of `right`.
  __device__ __forceinline__ void MultiplyByKeys(const Element* left,
                                                 const Element* right,
                                                 Scores& result) {
    const uint32_t a_address = LeftAddress<kHeadDim>(ptx::SharedAddress(left), ScoreRow(), Lane());
    const uint32_t b_address =
        RightRowsAddress<kHeadDim>(ptx::SharedAddress(right), Lane(), ScoreColumn());
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int n = 0; n < kScoreColumnTiles; ++n) Clear(result[r][n]);
    }
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      uint32_t a[kScoreRowTiles][4];
#pragma unroll
      for (int r = 0; r < kScoreRowTiles; ++r) {
        ptx::LdMatrixX4(a[r], Step<kHeadDim>(a_address, r * 16, 2 * k));
      }
#pragma unroll
      for (int n = 0; n < kScoreColumnTiles; n += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4(b, Step<kHeadDim>(b_address, n * 8, 2 * k));
#pragma unroll
        for (int r = 0; r < kScoreRowTiles; ++r) {
          ptx::MmaM16N8K16<Element>(result[r][n], a[r], b[0], b[1]);
          ptx::MmaM16N8K16<Element>(result[r][n + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void ComputeWeights(int32_t step, int slot, bool partial) {
    Scores scores;
    Scores grads;
    MultiplyByKeys(shared_->query[slot], shared_->key, scores);
    MultiplyByKeys(shared_->grad_out, shared_->value, grads);
    const float sign = args_.negate ? -args_.scale_log2 : args_.scale_log2;
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = ScoreRow() + r * 16 + half * 8 + Lane() / 4;
        const float lse = shared_->lse_log2[slot][row];
        const float delta = shared_->delta[slot][row];
#pragma unroll
        for (int n = 0; n < kScoreColumnTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& score = scores[r][n][half * 2 + e];
            float& grad = grads[r][n][half * 2 + e];
            score = Exp2(fmaf(score, sign, -lse));
            grad = score * (grad - delta);
          }
        }
      }
    }
    if (partial) MaskWeights(step * kRows, scores, grads);
    StoreCells(scores, shared_->weights);
    StoreCells(grads, shared_->grad_scores);
  }

  __device__ __forceinline__ void MaskWeights(int32_t row_begin, Scores& weights, Scores& grads) {
#pragma unroll
    for (int n = 0; n < kScoreColumnTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int4 column = shared_->bounds[ScoreColumn() + n * 8 + Lane() % 4 * 2 + e];
#pragma unroll
        for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int32_t row = row_begin + ScoreRow() + r * 16 + half * 8 + Lane() / 4;
            const bool masked = IsMaskedRow<kHalfLines>(column, row);
            weights[r][n][half * 2 + e] = masked ? 0.0f : weights[r][n][half * 2 + e];
            grads[r][n][half * 2 + e] = masked ? 0.0f : grads[r][n][half * 2 + e];
          }
        }
      }
    }
  }

  // A warp's part of a [rows, keys] result to a shared tile of 16-bit cells.
  __device__ __forceinline__ void StoreCells(const Scores& cells, Element* tile) {
    const uint32_t base = ptx::SharedAddress(tile);
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = ScoreRow() + r * 16 + half * 8 + Lane() / 4;
#pragma unroll
        for (int n = 0; n < kScoreColumnTiles; ++n) {
          const uint32_t at = TileOffset<kKeys>(row, ScoreColumn() / 8 + n) + Lane() % 4 * 4;
          StoreShared(base + at, Pack<Element>(cells[r][n][half * 2], cells[r][n][half * 2 + 1]));
        }
      }
    }
  }

  // sums += cells^T rows: cells [rows, keys] and rows [rows, head_dim] lie in shared memory.
  __device__ __forceinline__ void AddTransposed(const Element* cells,
                                                uint32_t rows,
                                                KeySums& sums) {
    const uint32_t a_address =
        LeftTransposedAddress<kKeys>(ptx::SharedAddress(cells), KeyRow() / 8, Lane());
    const uint32_t b_address = RightColumnsAddress<kHeadDim>(rows, Lane(), KeyColumn() / 8);
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t a[kKeyRowTiles][4];
#pragma unroll
      for (int r = 0; r < kKeyRowTiles; ++r) {
        ptx::LdMatrixX4Trans(a[r], Step<kKeys>(a_address, k * 16, 2 * r));
      }
#pragma unroll
      for (int d = 0; d < kKeyColumnTiles; d += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4Trans(b, Step<kHeadDim>(b_address, k * 16, d));
#pragma unroll
        for (int r = 0; r < kKeyRowTiles; ++r) {
          ptx::MmaM16N8K16<Element>(sums[r][d], a[r], b[0], b[1]);
          ptx::MmaM16N8K16<Element>(sums[r][d + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void AddGradQuery(int32_t head, int32_t step) {
    float sums[kScoreRowTiles][kQueryColumnTiles][4];
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < kQueryColumnTiles; ++d) Clear(sums[r][d]);
    }
    const uint32_t a_address =
        LeftAddress<kKeys>(ptx::SharedAddress(shared_->grad_scores), ScoreRow(), Lane());
    const uint32_t b_address =
        RightColumnsAddress<kHeadDim>(ptx::SharedAddress(shared_->key), Lane(), QueryColumn() / 8);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[kScoreRowTiles][4];
#pragma unroll
      for (int r = 0; r < kScoreRowTiles; ++r) {
        ptx::LdMatrixX4(a[r], Step<kKeys>(a_address, r * 16, 2 * k));
      }
#pragma unroll
      for (int d = 0; d < kQueryColumnTiles; d += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4Trans(b, Step<kHeadDim>(b_address, k * 16, d));
#pragma unroll
        for (int r = 0; r < kScoreRowTiles; ++r) {
          ptx::MmaM16N8K16<Element>(sums[r][d], a[r], b[0], b[1]);
          ptx::MmaM16N8K16<Element>(sums[r][d + 1], a[r], b[2], b[3]);
        }
      }
    }
    const int64_t num_steps = (args_.seqlen_q + kRows - 1) / kRows;
    float* sum =
        args_.grad_query_sum +
        ((int64_t{batch_} * args_.num_heads + head) * num_steps + step) * (kRows * kHeadDim);
#pragma unroll
    for (int r = 0; r < kScoreRowTiles; ++r) {
#pragma unroll
      for (int d = 0; d < kQueryColumnTiles; ++d) {
        const int quad = (Warp() * kScoreRowTiles + r) * kQueryColumnTiles + d;
        ReduceAdd4(sum + (quad * 32 + Lane()) * 4, sums[r][d]);
      }
    }
  }

  __device__ __forceinline__ void Finish(const KeySums& sums,
                                         float factor,
                                         Element* tile,
                                         const TensorView& view) {
    const uint32_t base = ptx::SharedAddress(tile);
#pragma unroll
    for (int r = 0; r < kKeyRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = KeyRow() + r * 16 + half * 8 + Lane() / 4;
#pragma unroll
        for (int d = 0; d < kKeyColumnTiles; ++d) {
          const uint32_t at = TileOffset<kHeadDim>(row, KeyColumn() / 8 + d) + Lane() % 4 * 4;
          StoreShared(
              base + at,
              Pack<Element>(sums[r][d][half * 2] * factor, sums[r][d][half * 2 + 1] * factor));
        }
      }
    }
    __syncthreads();
    StoreTile<kKeys, kHeadDim, Config::kThreads>(base,
                                                 Pointer(view, key_begin_, head_k_),
                                                 view.row_stride,
                                                 keys_,
                                                 args_.head_dim,
                                                 threadIdx.x);
  }

  const BackwardArguments& args_;
  BackwardShared<Config>* shared_;
  int32_t batch_;
  int32_t head_k_;
  int32_t key_begin_;
  int32_t keys_;
  KeySums grad_key_;
  KeySums grad_value_;
};

template <typename Config, bool kHalfLines>
__global__ void __launch_bounds__(Config::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  BackwardBlock<Config, kHalfLines> block(args, reinterpret_cast<BackwardShared<Config>*>(memory));
  block.Run();
}

// The summed gradient of one step of rows, in the order of AddGradQuery, to the tensor.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    ConvertGradQuery(const __grid_constant__ BackwardArguments args) {
  using Block = BackwardBlock<Config, true>;
  using Element = typename Config::Element;
  constexpr int kRows = Config::kBlockRows;
  constexpr int kHeadDim = Config::kHeadDim;
  constexpr int kWarpRows = kRows / Config::kScoreWarpRows;
  constexpr int kWarpColumns = kHeadDim / Config::kScoreWarpColumns;
  __shared__ alignas(128) Element tile[kRows * kHeadDim];
  const uint32_t base = ptx::SharedAddress(tile);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int64_t num_steps = (args.seqlen_q + kRows - 1) / kRows;
  const int64_t step = blockIdx.x % num_steps;
  const int64_t head_of_all = blockIdx.x / num_steps;
  const float4* sum = reinterpret_cast<const float4*>(
      args.grad_query_sum + static_cast<int64_t>(blockIdx.x) * (kRows * kHeadDim));
#pragma unroll
  for (int r = 0; r < Block::kScoreRowTiles; ++r) {
#pragma unroll
    for (int d = 0; d < Block::kQueryColumnTiles; ++d) {
      const int quad = (warp * Block::kScoreRowTiles + r) * Block::kQueryColumnTiles + d;
      const float4 value = sum[quad * 32 + lane];
      const int row = warp % Config::kScoreWarpRows * kWarpRows + r * 16 + lane / 4;
      const int chunk = warp / Config::kScoreWarpRows * kWarpColumns / 8 + d;
      const float scale = args.softmax_scale;
      StoreShared(base + TileOffset<kHeadDim>(row, chunk) + lane % 4 * 4,
                  Pack<Element>(value.x * scale, value.y * scale));
      StoreShared(base + TileOffset<kHeadDim>(row + 8, chunk) + lane % 4 * 4,
                  Pack<Element>(value.z * scale, value.w * scale));
    }
  }
  __syncthreads();
  const TensorView& view = args.grad_query;
  Element* destination =
      static_cast<Element*>(view.data) + head_of_all / args.num_heads * view.batch_stride +
      step * kRows * view.row_stride + head_of_all % args.num_heads * view.head_stride;
  const int rows = static_cast<int>(min(int64_t{kRows}, args.seqlen_q - step * kRows));
  StoreTile<kRows, kHeadDim, Config::kThreads>(base,
                                               destination,
                                               view.row_stride,
                                               rows,
                                               args.head_dim,
                                               threadIdx.x);
}

}  // namespace flashmask::sm80
