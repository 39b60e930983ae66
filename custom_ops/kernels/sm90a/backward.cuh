#pragma once

// Gradients of attention for sm_90a: wgmma, copies by the copy engine, warpgroups with roles.
//
// A work item is 128 keys of one key head. A block walks the live steps of rows (64 at head dim
// 128, 128 at 64) of all query heads of the group, keeps grad_key and grad_value of its keys in
// registers, and adds each step's share of grad_query to a float buffer in global memory. Blocks
// are as many as multiprocessors and fetch items from a counter: heads section by section, so that
// the buffer's part at work stays in the L2, and in a section the longest key blocks first.
//
// Roles, by warpgroup:
//   0, producer   warp 1 fetches items and lists their live steps, warp 0 has what is listed
//                 loaded; warps 2 and 3 hand a group's share of grad_query, and in the end its
//                 grad_key and grad_value, from staging to the copy engine
//   1, 2          each owns 64 keys. A step i of rows:
//                   S^T = K Q^T              issued at the end of step i - 1
//                   dP^T = V dO^T            then dK += dS^T Q of step i - 1, both under way while
//                   P^T = exp2(S^T - lse)    masked by runs of bits where the step is partial
//                   dS^T = P^T (dP^T - delta)  to shared memory, and as 16-bit operand in registers
//                   dV += P^T dO
//                   dQ = dS K                after both groups stored dS; each half of it
//                 so that the tensor cores have products of one kind or the other all along.
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
#include "kernels/ptx/stmatrix.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_math.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// Where a step's share of grad_query goes, and what kind of step it is.
struct StepInfo {
  int32_t tile;       // of grad_query_sum
  int32_t row_begin;
  int32_t mask_step;  // row of SumOrder::live_blocks
  uint32_t flags;
};

enum StepFlags : uint32_t {
  kPartialStep = 1,
  kLastStep = 2,   // of the item
  kFirstStep = 8,  // of the item
  kDeadStep = 4,   // of an item without live steps: there to write zeros
};

constexpr int32_t kNoMoreItems = -1;

struct ItemInfo {
  int32_t key_begin;  // or kNoMoreItems
  int32_t head_k;
  int32_t batch;
};

// A step that is to be loaded.
struct ListEntry {
  StepInfo step;
  ItemInfo item;
  int32_t head;
  int32_t mask;
};
constexpr int kListEntries = 4;

enum class JobKind : int32_t { kAddGradQuery, kStoreGradKey, kStoreGradValue, kExit };

// What a reducer warp is to do with a group's staging.
struct Job {
  JobKind kind;
  StepInfo step;
  ItemInfo item;
};

template <typename Config>
struct BackwardShared {
  using Element = typename Config::Element;
  static constexpr int kTile = Config::kKeys * Config::kHeadDim;
  static constexpr int kRowTile = Config::kRows * Config::kHeadDim;
  alignas(1024) Element key[kTile];
  alignas(1024) Element value[kTile];
  alignas(1024) Element query[Config::kQueryStages][kRowTile];
  alignas(1024) Element grad_out[Config::kGradOutStages][kRowTile];
  alignas(1024) Element grad_scores[2][Config::kKeys * Config::kRows];  // [rows / 64][key][64]
  alignas(1024) float staging[Config::kGroups][kRowTile / Config::kGroups];
  alignas(128) int4 bounds[Config::kQueryStages][Config::kKeys];
  alignas(128) float lse_log2[Config::kQueryStages][Config::kRows];
  alignas(128) float delta[Config::kGradOutStages][Config::kRows];
  StepInfo steps[Config::kQueryStages];
  ItemInfo items[2];
  Job jobs[Config::kGroups];
  ListEntry entries[kListEntries];
  alignas(8) uint64_t query_full[Config::kQueryStages];
  alignas(8) uint64_t query_empty[Config::kQueryStages];
  alignas(8) uint64_t grad_out_full[Config::kGradOutStages];
  alignas(8) uint64_t grad_out_empty[Config::kGradOutStages];
  alignas(8) uint64_t entry_full[kListEntries];
  alignas(8) uint64_t entry_empty[kListEntries];
  alignas(8) uint64_t key_full;
  alignas(8) uint64_t key_empty;
  alignas(8) uint64_t value_full;
  alignas(8) uint64_t value_empty;
};

// Numbers of named barriers; 0 is __syncthreads'. A staging is handed to and fro by two of them.
enum NamedBarrier : int {
  kGradScoresStored = 1,  // both consumer groups
  kStagingFree = 2,       // and 3: a reducer warp and its group
  kStagingFull = 4,       // and 5
};
constexpr int kStagingThreads = kWarpgroup + kWarp;

// A stage of a ring and the parity of its round.
template <int kStages>
struct RingPlace {
  int32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Warp 1 of the producer: fetches items, finds their live steps, and lists them for the loader.
template <typename Config>
class BackwardScheduler {
 public:
  using Shared = BackwardShared<Config>;
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ BackwardScheduler(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ __forceinline__ void Run() {
    while (true) {
      int32_t item = 0;
      if (lane_ == 0) item = atomicAdd(args_.next_item, 1);
      item = __shfl_sync(kAllLanes, item, 0);
      if (item >= args_.num_items) break;
      Decode(item);
      ListSteps();
    }
    key_begin_ = kNoMoreItems;
    List(0, 0, kFirstStep);
  }

 private:
  static constexpr int32_t kNone = -1;

  __device__ __forceinline__ bool IsOrdered() const { return args_.order.live_blocks != nullptr; }

  __device__ __forceinline__ int32_t Mask(int32_t head_of_group) const {
    const int32_t head = head_k_ * args_.heads_per_key + head_of_group;
    return batch_ * args_.num_heads_mask + head / args_.heads_per_mask;
  }

  __device__ __forceinline__ void Decode(int32_t item) {
    const int32_t blocks = args_.plan.num_key_blocks;
    const int32_t section_items = args_.heads_per_section * blocks;
    const int32_t first_head = item / section_items * args_.heads_per_section;
    const int32_t heads = min(args_.heads_per_section, args_.num_heads_k_total - first_head);
    const int32_t in_section = item % section_items;
    const int32_t rank = in_section / heads;
    const int32_t head_of_all = first_head + in_section % heads;
    batch_ = head_of_all / args_.num_heads_k;
    head_k_ = head_of_all % args_.num_heads_k;
    // The order of sums is that of the keys, so that no two masks of a group differ in it.
    const int32_t block =
        IsOrdered() ? rank : args_.plan.key_order[int64_t{Mask(0)} * blocks + rank];
    key_begin_ = block * Config::kKeys;
  }

  // A step is only listed when the next one is known: the last of an item is marked.
  __device__ __forceinline__ void ListSteps() {
    LiveSteps<kRows> live;
    LoadRanges(0, &live);
    int32_t step = live.Next(0);
    int32_t pending = kNone;
    int32_t pending_head = 0;
    uint32_t flags = kFirstStep | kPartialStep;
    for (int32_t head = 0;;) {  // of the group
      while (step >= args_.num_steps && ++head < args_.heads_per_key) {
        if (args_.heads_per_mask < args_.heads_per_key) LoadRanges(head, &live);
        step = live.Next(0);
      }
      const bool end = step >= args_.num_steps;
      if (pending != kNone) {
        List(pending_head, pending, flags | (end ? kLastStep : 0u));
        flags = 0;
      } else if (end) {
        List(0, 0, flags | kLastStep | kDeadStep);
      }
      if (end) return;
      pending = step;
      pending_head = head;
      flags = (flags & kFirstStep) | (live.IsPartial(step) ? kPartialStep : 0u);
      step = live.Next(step + 1);
    }
  }

  __device__ __forceinline__ void LoadRanges(int32_t head_of_group, LiveSteps<kRows>* live) const {
    live->Load(args_.plan.ranges + int64_t{Mask(head_of_group)} * args_.plan.num_column_tiles +
                   key_begin_ / kPlanColumns,
               args_.seqlen_q,
               args_.num_steps,
               IsOrdered(),
               lane_);
  }

  __device__ __forceinline__ void List(int32_t head_of_group, int32_t counted, uint32_t flags) {
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->entry_empty[place_.stage]), place_.parity ^ 1);
    if (lane_ == 0) {
      const int32_t step = IsOrdered() ? args_.num_steps - 1 - counted : counted;
      const int32_t head = head_k_ * args_.heads_per_key + head_of_group;
      const int32_t mask = Mask(head_of_group);
      ListEntry& entry = shared_->entries[place_.stage];
      entry.step = {(batch_ * args_.num_heads + head) * args_.num_steps + step,
                    step * kRows,
                    mask * args_.num_steps + step,
                    flags};
      entry.item = {key_begin_, head_k_, batch_};
      entry.head = head;
      entry.mask = mask;
      ptx::MbarrierArrive(ptx::SharedAddress(&shared_->entry_full[place_.stage]));
    }
    place_.Advance();
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int lane_;
  int32_t batch_ = 0;
  int32_t head_k_ = 0;
  int32_t key_begin_ = 0;
  RingPlace<kListEntries> place_;
};

// One thread of the producer: what the list says to shared memory.
template <typename Config>
class BackwardLoader {
 public:
  using Element = typename Config::Element;
  using Shared = BackwardShared<Config>;
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ BackwardLoader(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared) {}

  __device__ __forceinline__ void Run() {
    uint32_t item_parity = 0;
    while (true) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->entry_full[place_.stage]), place_.parity);
      const ListEntry& entry = shared_->entries[place_.stage];
      if ((entry.step.flags & kFirstStep) != 0) {
        if (!BeginItem(entry, item_parity)) return;
        item_parity ^= 1;
      }
      LoadQuery(entry);
      LoadGradOut(entry);
      ptx::MbarrierArrive(ptx::SharedAddress(&shared_->entry_empty[place_.stage]));
      place_.Advance();
    }
  }

 private:
  static constexpr uint32_t kElementBytes = 2;
  static constexpr uint32_t kRowTileBytes = Shared::kRowTile * kElementBytes;
  static constexpr uint32_t kKeyTileBytes = Shared::kTile * kElementBytes;
  static constexpr uint32_t kTermBytes = kRows * sizeof(float);
  static constexpr uint32_t kBoundsBytes = Config::kKeys * sizeof(int4);

  // False for the entry behind the last item.
  __device__ __forceinline__ bool BeginItem(const ListEntry& entry, uint32_t parity) {
    const bool exists = entry.item.key_begin != kNoMoreItems;
    const uint32_t key_full = ptx::SharedAddress(&shared_->key_full);
    if (exists) {
      ptx::MbarrierWait(ptx::SharedAddress(&shared_->value_empty), parity ^ 1);
      LoadKeyTile(&args_.value,
                  shared_->value,
                  entry.item,
                  ptx::SharedAddress(&shared_->value_full));
    }
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->key_empty), parity ^ 1);
    shared_->items[parity] = entry.item;
    if (exists) {
      LoadKeyTile(&args_.key, shared_->key, entry.item, key_full);
    } else {
      ptx::MbarrierArrive(key_full);
    }
    return exists;
  }

  __device__ __forceinline__ void LoadKeyTile(const CUtensorMap* map,
                                              const Element* tile,
                                              const ItemInfo& item,
                                              uint32_t full) {
    ptx::MbarrierArriveExpect(full, kKeyTileBytes);
#pragma unroll
    for (int column = 0; column < Config::kHeadDim; column += kSwizzleColumns) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + column * Config::kKeys),
                     map,
                     column,
                     item.head_k,
                     item.key_begin,
                     item.batch,
                     full);
    }
  }

  __device__ __forceinline__ void LoadQuery(const ListEntry& entry) {
    const int stage = query_.stage;
    const bool partial = (entry.step.flags & kPartialStep) != 0;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_empty[stage]), query_.parity ^ 1);
    shared_->steps[stage] = entry.step;
    const uint32_t full = ptx::SharedAddress(&shared_->query_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes + (partial ? kBoundsBytes : 0));
    LoadRowTile(&args_.query, shared_->query[stage], entry, entry.step.row_begin, full);
    ptx::BulkLoad(ptx::SharedAddress(shared_->lse_log2[stage]),
                  args_.terms.lse_log2 + TermOffset(entry),
                  kTermBytes,
                  full);
    if (partial) {
      const int64_t columns = int64_t{args_.plan.num_column_tiles} * kPlanColumns;
      ptx::BulkLoad(ptx::SharedAddress(shared_->bounds[stage]),
                    args_.plan.bounds + entry.mask * columns + entry.item.key_begin,
                    kBoundsBytes,
                    full);
    }
    query_.Advance();
  }

  __device__ __forceinline__ void LoadGradOut(const ListEntry& entry) {
    const int stage = grad_out_.stage;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_out_empty[stage]), grad_out_.parity ^ 1);
    const uint32_t full = ptx::SharedAddress(&shared_->grad_out_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes);
    LoadRowTile(&args_.grad_out,
                shared_->grad_out[stage],
                entry,
                entry.step.row_begin + args_.grad_out_row_shift,
                full);
    ptx::BulkLoad(ptx::SharedAddress(shared_->delta[stage]),
                  args_.terms.delta + TermOffset(entry),
                  kTermBytes,
                  full);
    grad_out_.Advance();
  }

  __device__ __forceinline__ int64_t TermOffset(const ListEntry& entry) const {
    const int32_t head_of_all = entry.item.batch * args_.num_heads + entry.head;
    return int64_t{head_of_all} * args_.terms.padded_rows + entry.step.row_begin;
  }

  __device__ __forceinline__ void LoadRowTile(const CUtensorMap* map,
                                              const Element* tile,
                                              const ListEntry& entry,
                                              int32_t row,
                                              uint32_t full) {
#pragma unroll
    for (int column = 0; column < Config::kHeadDim; column += kSwizzleColumns) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + column * kRows),
                     map,
                     column,
                     entry.head,
                     row,
                     entry.item.batch,
                     full);
    }
  }

  const BackwardArguments& args_;
  Shared* shared_;
  RingPlace<kListEntries> place_;
  RingPlace<Config::kQueryStages> query_;
  RingPlace<Config::kGradOutStages> grad_out_;
};

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
      if (job.kind == JobKind::kExit) break;
      if (job.kind != JobKind::kAddGradQuery) {
        if (lane_ == 0) StoreKeys(job);
      } else if (args_.order.live_blocks == nullptr) {
        if (lane_ == 0) AddGradQuery(job.step.tile);
      } else {
        AddInOrder(job);
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
  __device__ __forceinline__ void AddInOrder(const Job& job) {
    if ((job.step.flags & kDeadStep) != 0) return;
    const int32_t block = job.item.key_begin / Config::kKeys;
    const int32_t before = LiveBlockBefore(job.step.mask_step, block);
    if (lane_ != 0) return;
    int32_t* last_added = args_.order.last_added + int64_t{job.step.tile} * Config::kGroups + group_;
    while (LoadAcquire(last_added) != before + 1) {
    }
    FenceProxyGlobal();
    AddGradQuery(job.step.tile);
    ptx::BulkWait<0>();
    FenceProxyGlobal();
    StoreRelease(last_added, block + 1);
  }

  // The greatest live key block below `block`, or -1.
  __device__ __forceinline__ int32_t LiveBlockBefore(int32_t mask_step, int32_t block) const {
    constexpr int kBits = 32;
    const uint32_t* words = args_.order.live_blocks + int64_t{mask_step} * args_.order.words;
    for (int32_t last = block / kBits; last >= 0; last -= kWarp) {
      const int32_t word = last - lane_;
      uint32_t bits = word >= 0 ? words[word] : 0;
      if (word == block / kBits) bits &= (1u << block % kBits) - 1;
      const unsigned lanes = __ballot_sync(kAllLanes, bits != 0);
      if (lanes != 0) {
        const int source = __ffs(static_cast<int>(lanes)) - 1;
        bits = __shfl_sync(kAllLanes, bits, source);
        return (last - source) * kBits + kBits - 1 - __clz(static_cast<int>(bits));
      }
    }
    return -1;
  }

  __device__ __forceinline__ void StoreKeys(const Job& job) {
    const CUtensorMap* map =
        job.kind == JobKind::kStoreGradKey ? &args_.grad_key : &args_.grad_value;
    constexpr uint32_t kBoxBytes = Config::kGroupKeys * kSwizzleColumns * 2;
#pragma unroll
    for (int box = 0; box < Config::kHeadDim / kSwizzleColumns; ++box) {
      ptx::TmaStore4d(map,
                      staging_ + box * kBoxBytes,
                      box * kSwizzleColumns,
                      job.item.head_k,
                      job.item.key_begin + group_ * Config::kGroupKeys,
                      job.item.batch);
    }
    ptx::BulkCommit();
    ptx::BulkWaitRead<0>();
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int group_;
  int lane_;
  uint32_t staging_;
};

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
    Post(JobKind::kExit, 0, 0);
  }

 private:
  static constexpr int kDepth = 16;                  // elements of a product's inner axis
  static constexpr uint32_t kDepthBytes = kDepth * 2;
  static constexpr uint32_t kLineBytes = 128;        // of a row of a swizzled block
  static constexpr int kDepthsPerLine = kSwizzleColumns / kDepth;
  static constexpr uint32_t kRowBlock = kRows * kLineBytes;
  static constexpr uint32_t kKeyBlock = Config::kKeys * kLineBytes;
  static constexpr uint32_t kGroupBlock = Config::kGroupKeys * kLineBytes;
  static constexpr uint32_t kDepthRows = kDepth * kLineBytes;

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
    const uint32_t left = ptx::SharedAddress(keys) + group_ * kGroupBlock;
#pragma unroll
    for (int k = 0; k < kHeadDim / kDepth; ++k) {
      const uint32_t block = k / kDepthsPerLine;
      const uint32_t in_line = k % kDepthsPerLine * kDepthBytes;
      ptx::WgmmaShared<Element, kRows, false, false>(
          result,
          ptx::SwizzledTile(left + block * kKeyBlock + in_line, kDepthBytes / 2),
          ptx::SwizzledTile(rows + block * kRowBlock + in_line, kDepthBytes / 2),
          k != 0);
    }
  }

  // sums += cells^T rows: `cells` as registers hold 64 keys by kRows, `rows` kRows x kHeadDim.
  __device__ __forceinline__ void AddProduct(const uint32_t (&cells)[kScores / 2],
                                             uint32_t rows,
                                             bool keep,
                                             float (&sums)[kKeySums]) const {
#pragma unroll
    for (int k = 0; k < kRows / kDepth; ++k) {
      ptx::WgmmaRegisters<Element, kHeadDim, true>(sums,
                                                   cells[4 * k],
                                                   cells[4 * k + 1],
                                                   cells[4 * k + 2],
                                                   cells[4 * k + 3],
                                                   ptx::SwizzledTile(rows + k * kDepthRows, kRowBlock),
                                                   k != 0 || keep);
    }
  }

  // The same with dS of this group's keys in shared memory.
  __device__ __forceinline__ void AddGradKey(int slot,
                                             uint32_t rows,
                                             bool keep,
                                             float (&sums)[kKeySums]) const {
    const uint32_t left = GradScores(slot) + group_ * kGroupBlock;
#pragma unroll
    for (int k = 0; k < kRows / kDepth; ++k) {
      ptx::WgmmaShared<Element, kHeadDim, false, true>(
          sums,
          ptx::SwizzledTile(
              left + k / kDepthsPerLine * kKeyBlock + k % kDepthsPerLine * kDepthBytes,
              kDepthBytes / 2),
          ptx::SwizzledTile(rows + k * kDepthRows, kRowBlock),
          k != 0 || keep);
    }
  }

  // This group's part of dS K: at head dim 128 half of the columns, at 64 half of the rows.
  __device__ __forceinline__ void MultiplyByKeys(int slot, float (&result)[32]) const {
    constexpr bool kHalfColumns = kHeadDim == 128;
    const uint32_t left = GradScores(slot) + (kHalfColumns ? 0 : group_ * kKeyBlock);
    const uint32_t right =
        ptx::SharedAddress(shared_->key) + (kHalfColumns ? group_ * kKeyBlock : 0);
#pragma unroll
    for (int k = 0; k < Config::kKeys / kDepth; ++k) {
      ptx::WgmmaShared<Element, kSwizzleColumns, true, true>(
          result,
          ptx::SwizzledTile(left + k * kDepthRows, kKeyBlock),
          ptx::SwizzledTile(right + k * kDepthRows, kKeyBlock),
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

      ExponentiateScores(query_stage, (flags & kPartialStep) != 0, scores);
      ptx::WgmmaWait<1>();
      ptx::WgmmaPin(grads);
      if (last) Arrive(shared_->value_empty);
      FormGradScores(grad_out_stage, slot, scores, grads, weights);
      ptx::FenceProxyAsync();
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
      Post(JobKind::kAddGradQuery, before, parity);
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
    Post(JobKind::kAddGradQuery, before, parity);
    StageKeySums(grad_value, 1.0f);
    Post(JobKind::kStoreGradValue, before, parity);
    ptx::WgmmaWait<0>();
    ptx::WgmmaPin(grad_key);
    Arrive(shared_->query_empty[before]);
    StageKeySums(grad_key, args_.softmax_scale);
    Post(JobKind::kStoreGradKey, before, parity);
  }

  // Scores to weights, masked ones to 0. The branch also keeps the wait behind it from being moved
  // before the exponentials.
  __device__ __forceinline__ void ExponentiateScores(int stage,
                                                     bool partial,
                                                     float (&scores)[kScores]) const {
    const int pair = Lane() % 4 * 2;
    const float* terms = shared_->lse_log2[stage] + pair;
    const float scale = args_.scale_log2;
    const auto exponentiate = [&](int j) {
      const float2 lse = *reinterpret_cast<const float2*>(terms + 8 * j);
      scores[4 * j] = Exp2(fmaf(scores[4 * j], scale, -lse.x));
      scores[4 * j + 1] = Exp2(fmaf(scores[4 * j + 1], scale, -lse.y));
      scores[4 * j + 2] = Exp2(fmaf(scores[4 * j + 2], scale, -lse.x));
      scores[4 * j + 3] = Exp2(fmaf(scores[4 * j + 3], scale, -lse.y));
    };
    if (partial) {
      const int key = group_ * Config::kGroupKeys + thread_ / kWarp * 16 + Lane() / 4;
      const int32_t row = shared_->steps[stage].row_begin;
      const uint32_t masked = MaskedRows<kRows>(shared_->bounds[stage][key], row, pair);
      const uint32_t masked_8 = MaskedRows<kRows>(shared_->bounds[stage][key + 8], row, pair);
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) {
        exponentiate(j);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t bit = 1u << (2 * j + e);
          if ((masked & bit) != 0) scores[4 * j + e] = 0.0f;
          if ((masked_8 & bit) != 0) scores[4 * j + 2 + e] = 0.0f;
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kRows / 8; ++j) exponentiate(j);
    }
  }

  // Rounds the weights to operands, and stores the gradients of the scores.
  __device__ __forceinline__ void FormGradScores(int stage,
                                                 int slot,
                                                 const float (&scores)[kScores],
                                                 const float (&grads)[kScores],
                                                 uint32_t (&weights)[kScores / 2]) const {
    const float* terms = shared_->delta[stage] + Lane() % 4 * 2;
    const int row = Lane() % 16;
    const uint32_t to = GradScores(slot) + group_ * kGroupBlock +
                        (thread_ / kWarp * 16 + row) * kLineBytes;
#pragma unroll
    for (int i = 0; i < kRows / kDepth; ++i) {
      uint32_t cells[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = 2 * i + half;
        const float2 delta = *reinterpret_cast<const float2*>(terms + 8 * j);
        const float* p = scores + 4 * j;
        const float* d = grads + 4 * j;
        weights[2 * j] = Pack<Element>(p[0], p[1]);
        weights[2 * j + 1] = Pack<Element>(p[2], p[3]);
        cells[2 * half] = Pack<Element>(p[0] * (d[0] - delta.x), p[1] * (d[1] - delta.y));
        cells[2 * half + 1] = Pack<Element>(p[2] * (d[2] - delta.x), p[3] * (d[3] - delta.y));
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
    ptx::FenceProxyAsync();
  }

  __device__ __forceinline__ void StageKeySums(const float (&sums)[kKeySums], float factor) const {
    const int row = Lane() % 16;
    const uint32_t to = WaitForStaging() + (thread_ / kWarp * 16 + row) * kLineBytes;
#pragma unroll
    for (int i = 0; i < kHeadDim / kDepth; ++i) {
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
    ptx::FenceProxyAsync();
  }

  // Hands the staging to the reducer; `stage` is the query stage of the step.
  __device__ __forceinline__ void Post(JobKind kind, int stage, uint32_t item_parity) const {
    if (kind == JobKind::kExit) WaitForStaging();
    if (thread_ == 0) {
      Job& job = shared_->jobs[group_];
      job.kind = kind;
      job.step = shared_->steps[stage];
      job.item = shared_->items[item_parity];
    }
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

template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    BackwardKernel(const __grid_constant__ BackwardArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  auto* shared = reinterpret_cast<BackwardShared<Config>*>(memory);
  if (threadIdx.x == 0) {
    constexpr uint32_t kConsumerWarps = Config::kGroups * kWarpgroup / kWarp;
    const auto init = [](uint64_t& full, uint64_t& empty, uint32_t readers) {
      ptx::MbarrierInit(ptx::SharedAddress(&full), 1);
      ptx::MbarrierInit(ptx::SharedAddress(&empty), readers);
    };
    for (int i = 0; i < Config::kQueryStages; ++i) {
      init(shared->query_full[i], shared->query_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < Config::kGradOutStages; ++i) {
      init(shared->grad_out_full[i], shared->grad_out_empty[i], kConsumerWarps);
    }
    for (int i = 0; i < kListEntries; ++i) init(shared->entry_full[i], shared->entry_empty[i], 1);
    init(shared->key_full, shared->key_empty, kConsumerWarps);
    init(shared->value_full, shared->value_empty, kConsumerWarps);
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
