#pragma once

// Gradients of attention for sm_80 and newer: mma.sync and cp.async.
//
// A block owns 32, 64 or 128 keys of one key head. It walks the live steps of 32, 64 or 128 query
// rows (tile_config.h, live_tiles.cuh) of the query heads of the group, all of them unless there
// are few key blocks (key_shares.cuh), keeps grad_key and grad_value in registers, and adds each
// step's share of grad_query to a float buffer in global memory by reductions, so the order of
// those sums, and with it the last bits of grad_query, may change from run to run. Blocks start
// longest first.
//
// With kDeterministic key blocks add to a step of rows one after another, the last one first
// (key_turns.h). They also start in that order, each with a ticket, so a block waits only for
// blocks that have started before; heads whose sums fit the L2 together take turns, so that
// neighbours do not start at once. Under a diagonal the last key block is two steps ahead of its
// neighbour where rows are walked downwards, and nobody waits.
//
// A step, with 8 (or 4) warps:
//   S = Q K^T, dP = dO V^T   weights P and gradients dS to shared memory
//   dV += P^T dO             in registers over all steps
//   dQ += dS K               reduced to global memory
//   dK += dS^T Q             as dV
// with a barrier before the first and between the first and the second line (and, where grad_out
// has one buffer, after dV). Q(i + 1) and dO(i + 1) are on their way from dV (i) on; exponentials
// are worked out between the steps of dP.
//
// Shared memory: key, value (all along, then grad_key and grad_value on their way out), query
// twice, grad_out once or twice, P, dS: swizzled tiles; lse and delta of a step; bounds of the
// keys; live steps and their turns.
//
// The buffer of grad_query is laid out as the registers of a step's result lie, so that a warp's
// reduction covers whole lines: [row step][warp][register quad][lane][4]. ConvertGradQuery undoes
// that.
// Source: FlashAttention-2, arXiv 2307.08691, algorithm 2; FlashMask, arXiv 2410.01359.

#include "kernels/common/key_turns.h"
#include "kernels/common/mask_plan.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/turn.h"
#include "kernels/sm80/backward_scores.cuh"
#include "kernels/sm80/backward_shared.cuh"
#include "kernels/sm80/fragments.cuh"
#include "kernels/sm80/shared_tile.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm80 {

template <typename Config, bool kHalfLines, bool kDeterministic>
class BackwardBlock {
 public:
  using Element = typename Config::Element;
  static constexpr int kHeadDim = Config::kHeadDim;
  static constexpr int kRows = Config::kBlockRows;
  static constexpr int kKeys = Config::kBlockColumns;
  // mma tiles of a warp's part of each result: 16 rows by 8 columns
  static constexpr int kQueryRowTiles = kRows / Config::kQueryWarpRows / 16;
  static constexpr int kKeyRowTiles = kKeys / Config::kKeyWarpRows / 16;
  using QueryChunks = WarpChunks<kHeadDim, Config::kQueryWarpColumns>;
  using KeyChunks = WarpChunks<kHeadDim, Config::kKeyWarpColumns>;
  static constexpr int kQueryColumnTiles = QueryChunks::kCount;
  static constexpr int kKeyColumnTiles = KeyChunks::kCount;
  // Columns of grad_query at once: half of them where all would want too many registers.
  static constexpr int kMostQuerySums = 48;
  static constexpr int kQueryColumnsAtOnce =
      kQueryRowTiles * kQueryColumnTiles * 4 <= kMostQuerySums ? kQueryColumnTiles
                                                               : kQueryColumnTiles / 2;
  static constexpr bool kTwoGradOuts = Config::kGradOutStages == 2;
  static constexpr unsigned kTurnThread = 32;  // of warp 1
  // Key blocks of one of the plan; the last of them may have no keys at all.
  static constexpr int kBlocksPerPlanned = kPlanKeyBlock / kKeys;
  static_assert(kPlanKeyBlock % kKeys == 0, "the plan's key blocks are whole blocks of ours");
  using Shared = BackwardShared<Config, kDeterministic>;
  using KeySums = float[kKeyRowTiles][kKeyColumnTiles][4];

  __device__ BackwardBlock(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared),
        scores_(args, shared) {
    const int32_t blocks = args.plan.num_key_blocks * kBlocksPerPlanned;
    int32_t head_of_all = static_cast<int32_t>(blockIdx.x) / blocks;
    int32_t rank = static_cast<int32_t>(blockIdx.x) % blocks;
    if constexpr (kDeterministic) {
      const int32_t ticket = TakeTicket();
      const int32_t section = args.heads_per_section * blocks;
      const int32_t first_head = ticket / section * args.heads_per_section;
      const int32_t all_heads = static_cast<int32_t>(gridDim.x) / blocks;
      const int32_t heads = min(args.heads_per_section, all_heads - first_head);
      head_of_all = first_head + ticket % section % heads;
      rank = ticket % section / heads;
    }
    batch_ = head_of_all / args.num_shares;
    share_ = head_of_all % args.num_shares;
    key_block_ = blocks - 1 - rank;
    if constexpr (!kDeterministic) {
      const int64_t mask = Mask(share_ * args.heads_per_item);
      const int32_t* order = args.plan.key_order + mask * args.plan.num_key_blocks;
      key_block_ = order[rank / kBlocksPerPlanned] * kBlocksPerPlanned +
                   (kBlocksPerPlanned - 1 - rank % kBlocksPerPlanned);
    }
    keys_ = min(kKeys, args.seqlen_k - KeyBegin());
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
    const int32_t num_steps = NumSteps();
    for (int32_t g = 0; g < args_.heads_per_item; ++g) {
      const int32_t head = share_ * args_.heads_per_item + g;
      if (g == 0 || args_.heads_per_mask < args_.heads_per_item) LoadBounds(Mask(head));
      for (int32_t begin = 0; begin < num_steps; begin += shared_->live.kChunkTiles) {
        CollectSteps(Mask(head), begin, num_steps);
        __syncthreads();
        RunChunk(head, begin);
        __syncthreads();
      }
    }
    ptx::CpAsyncWait<0>();
    __syncthreads();
    Stage(grad_key_, args_.softmax_scale, shared_->key);
    Stage(grad_value_, 1.0f, shared_->value);
    __syncthreads();
    Store(shared_->key, args_.grad_key);
    Store(shared_->value, args_.grad_value);
  }

 private:
  using Place = ThreadPlace<kHeadDim>;

  // First row and chunk of a warp's part of grad_query, then of grad_key and grad_value.
  static __device__ __forceinline__ int QueryRow() {
    return Place::Warp() % Config::kQueryWarpRows * (kRows / Config::kQueryWarpRows);
  }
  static __device__ __forceinline__ int QueryChunk() {
    return QueryChunks::First(Place::Warp() / Config::kQueryWarpRows);
  }
  static __device__ __forceinline__ int KeyRow() {
    return Place::Warp() % Config::kKeyWarpRows * (kKeys / Config::kKeyWarpRows);
  }
  static __device__ __forceinline__ int KeyChunk() {
    return KeyChunks::First(Place::Warp() / Config::kKeyWarpRows);
  }

  // A number of its own, counted up in the order in which blocks start.
  __device__ __forceinline__ int32_t TakeTicket() {
    if (threadIdx.x == 0) shared_->order.ticket = atomicAdd(args_.turns.ticket, 1);
    __syncthreads();
    return shared_->order.ticket;
  }

  __device__ __forceinline__ int32_t KeyBegin() const { return key_block_ * kKeys; }

  __device__ __forceinline__ int32_t NumSteps() const {
    return (args_.seqlen_q + kRows - 1) / kRows;
  }

  // Index of a step of a head over the batch.
  __device__ __forceinline__ int64_t StepOfAll(int32_t head, int32_t step) const {
    return (int64_t{batch_} * args_.num_heads + head) * NumSteps() + step;
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
    const int32_t head_k = share_ / args_.shares_of_key;
    LoadTileAsync<kKeys, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->key),
                                                     Pointer(args_.key, KeyBegin(), head_k),
                                                     args_.key.row_stride,
                                                     keys_,
                                                     args_.head_dim,
                                                     threadIdx.x);
    LoadTileAsync<kKeys, kHeadDim, Config::kThreads>(ptx::SharedAddress(shared_->value),
                                                     Pointer(args_.value, KeyBegin(), head_k),
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
      const int32_t column = KeyBegin() + i;
      shared_->bounds[i] = column < planned ? args_.plan.bounds[int64_t{mask} * planned + column]
                                            : make_int4(0, args_.seqlen_q, 0, 0);
    }
  }

  __device__ __forceinline__ void CollectSteps(int32_t mask, int32_t begin, int32_t num_steps) {
    const int32_t num_tiles = args_.plan.num_column_tiles;
    const TileRange* ranges = args_.plan.ranges + int64_t{mask} * num_tiles;
    shared_->live.Collect(begin, num_steps, [&](int step) {
      const int32_t row = step * kRows;
      const int32_t row_end = min(row + kRows, args_.seqlen_q);
      const TileClass found = ClassifyKeyBlock<kKeys>(ranges, num_tiles, key_block_, row, row_end);
      if constexpr (kDeterministic) {
        if (found != TileClass::kSkip) {
          const int32_t last = args_.turns.last_blocks[int64_t{mask} * num_steps + step];
          shared_->order.turns[step - begin] =
              TurnOf<kKeys>(ranges, num_tiles, key_block_, last, row, row_end);
        }
      }
      return found;
    });
  }

  __device__ __forceinline__ void RunChunk(int32_t head, int32_t begin) {
    const int count = shared_->live.Count();
    if (count == 0) return;
    int32_t entry = shared_->live.Entry(0, begin);
    LoadQuery(head, entry / 2, 0, RowsOf(entry / 2));
    LoadGradOut(head, entry / 2, 0, RowsOf(entry / 2));
    LoadTerms(head, entry / 2);
    ptx::CpAsyncCommit();
    int32_t passed = 0;  // the step before
    for (int i = 0; i < count; ++i) {
      const int32_t step = entry / 2;
      const bool partial = entry % 2 != 0;
      const int slot = i % 2;
      ptx::CpAsyncWait<0>();
      __syncthreads();  // rows (i) are there; weights (i - 1) and rows (i - 1) are read by none
      if constexpr (kDeterministic) {
        if (i > 0) PassTurn(head, passed);
        passed = step;
      }
      scores_.Compute(step, shared_->query[slot], GradOut(slot), partial, [&] {
        if constexpr (kDeterministic) CheckTurn(head, step, begin);
      });
      __syncthreads();  // weights and score gradients (i) are there; row terms (i) are read by none
      entry = shared_->live.Entry(min(i + 1, count - 1), begin);
      const int32_t next = entry / 2;
      const int next_rows = i + 1 < count ? RowsOf(next) : 0;
      if (kTwoGradOuts && next_rows > 0) LoadGradOut(head, next, slot ^ 1, next_rows);
      AddTransposed(shared_->weights, ptx::SharedAddress(GradOut(slot)), grad_value_);
      if (!kTwoGradOuts) {
        __syncthreads();  // grad_out (i) is read by none
        if (next_rows > 0) LoadGradOut(head, next, 0, next_rows);
      }
      if (next_rows > 0) LoadQuery(head, next, slot ^ 1, next_rows);
      LoadTerms(head, next);
      ptx::CpAsyncCommit();
      AddGradQuery(head, step, begin);
      AddTransposed(shared_->grad_scores, ptx::SharedAddress(shared_->query[slot]), grad_key_);
    }
    ptx::CpAsyncWait<0>();  // the last step has asked for nothing, but the next list must not
                            // overtake
    if constexpr (kDeterministic) {
      __syncthreads();  // all have added
      PassTurn(head, passed);
    }
  }

  // Turns: one thread passes them on and another looks for them, in warps that share no scheduler,
  // since each waits long; the barriers of the loop make what they know hold for the whole block.
  __device__ __forceinline__ int32_t* TurnWord(int32_t head, int32_t step) const {
    return args_.turns.done + StepOfAll(head, step);
  }

  // Tells the next block that what this one added at a step is there; after a barrier.
  __device__ __forceinline__ void PassTurn(int32_t head, int32_t step) const {
    if (threadIdx.x == 0) ptx::StoreRelease(TurnWord(head, step), TurnAfter(key_block_));
  }

  __device__ __forceinline__ void CheckTurn(int32_t head, int32_t step, int32_t begin) {
    if (threadIdx.x != kTurnThread) return;
    const int32_t turn = shared_->order.turns[step - begin];
    shared_->order.has_turn = turn == 0 || ptx::LoadAcquire(TurnWord(head, step)) == turn;
  }

  // All threads call this, a barrier after CheckTurn.
  __device__ __forceinline__ void AwaitTurn(int32_t head, int32_t step, int32_t begin) {
    if (shared_->order.has_turn) return;
    if (threadIdx.x == kTurnThread) {
      const int32_t turn = shared_->order.turns[step - begin];
      while (ptx::LoadAcquire(TurnWord(head, step)) != turn) {
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ Element* GradOut(int slot) const {
    return shared_->grad_out[kTwoGradOuts ? slot : 0];
  }

  // Loads `rows` rows of a step, 0 of them if there is none: what is asked for costs addresses
  // alone, and code without branches lets the compiler work them out beside the products.
  __device__ __forceinline__ void LoadQuery(int32_t head, int32_t step, int slot, int rows) {
    LoadTileAsync<kRows, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(shared_->query[slot]),
        Pointer(args_.query, int64_t{step} * kRows, head),
        args_.query.row_stride,
        rows,
        args_.head_dim,
        Place::ThreadHere());
  }

  __device__ __forceinline__ void LoadGradOut(int32_t head, int32_t step, int slot, int rows) {
    LoadTileAsync<kRows, kHeadDim, Config::kThreads>(
        ptx::SharedAddress(GradOut(slot)),
        Pointer(args_.grad_out, int64_t{step} * kRows, head),
        args_.grad_out.row_stride,
        args_.grad_out.data != nullptr ? rows : 0,
        args_.head_dim,
        Place::ThreadHere());
  }

  __device__ __forceinline__ void LoadTerms(int32_t head, int32_t step) {
    const int64_t index = StepOfAll(head, step) * kRows;
    constexpr int kFloats = 4;  // of a 16-byte copy
    constexpr int kCopies = kRows / kFloats;
    const float* from =
        threadIdx.x < kCopies ? args_.terms.lse_log2 : args_.terms.delta - kFloats * kCopies;
    if (threadIdx.x < 2 * kCopies) {
      ptx::CpAsync16(ptx::SharedAddress(&shared_->terms[0][threadIdx.x * kFloats]),
                     from + index + threadIdx.x * kFloats,
                     true);
    }
  }

  __device__ __forceinline__ int RowsOf(int32_t step) const {
    return min(kRows, args_.seqlen_q - step * kRows);
  }

  // sums += cells^T rows: cells [rows, keys] and rows [rows, head_dim] lie in shared memory.
  __device__ __forceinline__ void AddTransposed(const Element* cells,
                                                uint32_t rows,
                                                KeySums& sums) {
    const uint32_t a_address =
        LeftTransposedAddress<kKeys>(ptx::SharedAddress(cells), KeyRow() / 8, Place::LaneHere());
    const uint32_t b_address = RightColumnsAddress<kHeadDim>(rows, Place::LaneHere(), KeyChunk());
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t a[kKeyRowTiles][4];
#pragma unroll
      for (int r = 0; r < kKeyRowTiles; ++r) {
        ptx::LdMatrixX4Trans(a[r], Step<kKeys>(a_address, k * 16, 2 * r));
      }
      AddDepth<Element, kHeadDim, KeyChunks>(sums, a, b_address, k * 16);
    }
  }

  __device__ __forceinline__ void AddGradQuery(int32_t head, int32_t step, int32_t begin) {
    const uint32_t a_address =
        LeftAddress<kKeys>(ptx::SharedAddress(shared_->grad_scores), QueryRow(), Place::LaneHere());
    const uint32_t b_address = RightColumnsAddress<kHeadDim>(ptx::SharedAddress(shared_->key),
                                                             Place::LaneHere(),
                                                             QueryChunk());
#pragma unroll
    for (int first = 0; first < kQueryColumnTiles; first += kQueryColumnsAtOnce) {
      float sums[kQueryRowTiles][kQueryColumnsAtOnce][4];
#pragma unroll
      for (int r = 0; r < kQueryRowTiles; ++r) {
#pragma unroll
        for (int d = 0; d < kQueryColumnsAtOnce; ++d) Clear(sums[r][d]);
      }
      const uint32_t right = Step<kHeadDim>(b_address, 0, QueryChunks::Step(first));
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        uint32_t a[kQueryRowTiles][4];
#pragma unroll
        for (int r = 0; r < kQueryRowTiles; ++r) {
          ptx::LdMatrixX4(a[r], Step<kKeys>(a_address, r * 16, 2 * k));
        }
        AddDepth<Element, kHeadDim, QueryChunks>(sums, a, right, k * 16);
      }
      constexpr int kPart = kQueryRowTiles * kQueryColumnTiles * 32 * 4;  // a warp's of the sums
      float* sum = args_.grad_query_sum + StepOfAll(head, step) * (kRows * kHeadDim) +
                   Place::Warp() * kPart + Place::Lane() * 4;
      if constexpr (kDeterministic) {
        if (first == 0) AwaitTurn(head, step, begin);
      }
#pragma unroll
      for (int r = 0; r < kQueryRowTiles; ++r) {
#pragma unroll
        for (int d = 0; d < kQueryColumnsAtOnce; ++d) {
          ptx::ReduceAdd4(sum + (r * kQueryColumnTiles + first + d) * 32 * 4, sums[r][d]);
        }
      }
    }
  }

  __device__ __forceinline__ void Stage(const KeySums& sums, float factor, Element* tile) const {
    const uint32_t base = ptx::SharedAddress(tile);
#pragma unroll
    for (int r = 0; r < kKeyRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = KeyRow() + r * 16 + half * 8 + Place::Lane() / 4;
#pragma unroll
        for (int d = 0; d < kKeyColumnTiles; ++d) {
          const int chunk = KeyChunk() + KeyChunks::Step(d);
          const uint32_t at = TileOffset<kHeadDim>(row, chunk) + Place::Lane() % 4 * 4;
          ptx::StoreShared(
              base + at,
              Pack<Element>(sums[r][d][half * 2] * factor, sums[r][d][half * 2 + 1] * factor));
        }
      }
    }
  }

  __device__ __forceinline__ void Store(const Element* tile, const TensorView& view) const {
    StoreTile<kKeys, kHeadDim, Config::kThreads>(ptx::SharedAddress(tile),
                                                 Pointer(view, KeyBegin(), share_),
                                                 view.row_stride,
                                                 keys_,
                                                 args_.head_dim,
                                                 threadIdx.x);
  }

  const BackwardArguments& args_;
  Shared* shared_;
  BackwardScores<Config, kHalfLines, kDeterministic> scores_;
  int32_t batch_;
  int32_t share_;  // of all shares of the batch row
  int32_t key_block_;
  int32_t keys_;
  KeySums grad_key_;
  KeySums grad_value_;
};

template <typename Config, bool kHalfLines, bool kDeterministic>
__global__ void __launch_bounds__(Config::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardArguments args) {
  extern __shared__ __align__(128) unsigned char memory[];
  using Block = BackwardBlock<Config, kHalfLines, kDeterministic>;
  Block block(args, reinterpret_cast<typename Block::Shared*>(memory));
  block.Run();
}

}  // namespace flashmask::sm80
