#pragma once

// The warps of the sm90a backward that compute nothing: they say what is next, have it loaded, and
// hand results to the copy engine. See backward.cuh.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/turn.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/sm90a/backward_config.h"
#include "kernels/sm90a/backward_mask.cuh"
#include "kernels/sm90a/backward_shared.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// Warp 1 of the producer: fetches items, finds their live steps, and lists them for the loader.
template <typename Config, typename Shared = BackwardShared<Config>>
class BackwardScheduler {
 public:
  static constexpr int kRows = Config::kRows;

  __device__ __forceinline__ BackwardScheduler(const BackwardArguments& args, Shared* shared)
      : args_(args),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ __forceinline__ void Run() {
    heads_per_section_ = HeadsPerSection();
    waves_per_section_ = WavesPerSection();
    while (true) {
      int32_t item = 0;
      if (lane_ == 0) item = atomicAdd(args_.next_item, 1);
      item = __shfl_sync(kAllLanes, item, 0);
      if (item >= args_.num_items) break;
      if (Decode(item)) ListSteps();
    }
    key_begin_ = kNoMoreItems;
    List(0, 0, kFirstStep);
  }

 private:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kStepsAtOnce = 8;  // of a head before the next of its group
  static constexpr int32_t kOrderedStepsAtOnce = 4;
  static constexpr int kParts = kPlanKeyBlock / Config::kKeys;  // of an entry of the plan's order

  __device__ __forceinline__ bool IsOrdered() const { return args_.order.live_blocks != nullptr; }

  // In ordered sums the key blocks of a head wait for each other where they see the same rows, so
  // as many heads as can be are worked on together: key blocks come one after the other there, and
  // so do the rows at work, a part of the sums that is about as large as that of the live pairs.
  __device__ __forceinline__ int32_t HeadsPerSection() const {
    if (!IsOrdered()) return args_.heads_per_section;
    const float all = static_cast<float>(args_.plan.num_masks) *
                      static_cast<float>(args_.num_steps) *
                      static_cast<float>(args_.plan.num_key_blocks);
    const float live = fmaxf(1.0f, static_cast<float>(*args_.order.live_pairs));
    const float heads = args_.order.heads_if_dense * (all / live);
    const float most = static_cast<float>(args_.num_shares_total);
    const auto shares = static_cast<int32_t>(fminf(fmaxf(heads, 1.0f), most));
    // Shares of the same rows' sums wait for each other, and so must not begin in two sections.
    return (shares + args_.shares.rows - 1) / args_.shares.rows * args_.shares.rows;
  }

  __device__ __forceinline__ int32_t ItemsPerSection() const {
    return heads_per_section_ * args_.plan.num_key_blocks * kParts;
  }

  // Blocks of keys that all multiprocessors begin at about the same time; one at least.
  __device__ __forceinline__ int32_t WavesPerSection() const {
    const int32_t blocks = static_cast<int32_t>(gridDim.x);
    return max((ItemsPerSection() + blocks / 2) / blocks, 1);
  }

  __device__ __forceinline__ int32_t Mask(int32_t head_of_group) const {
    const int32_t head = first_head_ + head_of_group;
    return batch_ * args_.num_heads_mask + head / args_.heads_per_mask;
  }

  // False if the item stands for nothing.
  __device__ __forceinline__ bool Decode(int32_t item) {
    const int32_t long_items = args_.long_ranks * args_.num_shares_total * kParts;
    return item < long_items ? DecodeLong(item) : DecodeInSections(item - long_items);
  }

  // With groups of heads, a long block of the last section would be at work alone for a good part
  // of the time, so long ones of all heads come first.
  __device__ __forceinline__ bool DecodeLong(int32_t item) {
    SetShare(item % args_.num_shares_total);
    const int32_t rank = item / args_.num_shares_total;
    const int32_t planned = args_.plan.key_order[FirstBlockOfMask() + rank / kParts];
    key_begin_ = (planned * kParts + rank % kParts) * Config::kKeys;
    from_last_row_ = true;
    return IsLong(planned);
  }

  __device__ __forceinline__ bool DecodeInSections(int32_t item) {
    const int32_t section_items = ItemsPerSection();
    const int32_t section = item / section_items;
    const int32_t first_head = section * heads_per_section_;
    const int32_t heads = min(heads_per_section_, args_.num_shares_total - first_head);
    const int32_t in_section = item % section_items;
    SetShare(first_head + in_section % heads);
    rank_ = in_section / heads;
    const bool is_last = first_head + heads == args_.num_shares_total;
    int32_t planned = rank_ / kParts;
    if (IsOrdered() || args_.heads_per_item == 1 || is_last) {
      planned = args_.plan.key_order[FirstBlockOfMask() + planned];
    }
    key_begin_ = (planned * kParts + rank_ % kParts) * Config::kKeys;
    const auto wave =
        static_cast<int32_t>(int64_t{in_section} * waves_per_section_ / section_items);
    from_last_row_ = IsFromLastRow(section * waves_per_section_ + wave);
    return args_.long_ranks == 0 || !IsLong(planned);
  }

  __device__ __forceinline__ void SetShare(int32_t share_of_all) {
    batch_ = share_of_all / args_.num_shares;
    share_ = share_of_all % args_.num_shares;
    head_k_ = share_ / args_.shares.Count();
    first_head_ = share_ / args_.shares.rows * args_.heads_per_item;
  }

  // The first head of an item decides for all of them.
  __device__ __forceinline__ int64_t FirstBlockOfMask() const {
    return int64_t{Mask(0)} * args_.plan.num_key_blocks;
  }

  __device__ __forceinline__ bool IsLong(int32_t planned) const {
    return IsLongKeyBlock(args_.plan.key_costs[FirstBlockOfMask() + planned],
                          args_.plan.key_sums[Mask(0)],
                          args_.plan.num_key_blocks);
  }

  // With groups of heads the blocks at work should be at the same rows, so that the sums there of
  // all heads stay in the L2. Under a diagonal blocks that begin together end one after the other,
  // so of two waves the first takes rows from the last to the first, and the other, whose blocks
  // begin as those end, from the first on: it moves along the diagonal all at once, and ends at
  // once. Where the longest block is short, as in documents, those of a wave belong to several
  // diagonals, and all begin at the last row.
  __device__ __forceinline__ bool IsFromLastRow(int32_t wave) const {
    if (IsOrdered()) return true;
    if (args_.heads_per_item == 1) return false;
    const int64_t first = FirstBlockOfMask();
    const int32_t longest = args_.plan.key_costs[first + args_.plan.key_order[first]];
    const int64_t rows = int64_t{longest} * kPlanRowStep * heads_per_section_;
    const int64_t keys_of_wave = int64_t{Config::kKeys} * gridDim.x;
    return wave % 2 == 0 || 4 * rows < 3 * keys_of_wave;
  }

  // Of some live steps (a run) those of each head of the group that shares the mask, then of the
  // next. So the rows at work are few, and yet a block that a window keeps to some of them does not
  // get far away from its neighbours. Where rows are shared, runs go round.
  __device__ __forceinline__ void ListSteps() {
    const int32_t heads_at_once = min(args_.heads_per_mask, args_.heads_per_item);
    const int32_t steps_at_once = IsOrdered() ? kOrderedStepsAtOnce : kStepsAtOnce;
    pending_step_ = kNone;
    flags_ = kFirstStep | kPartialStep;
    LiveSteps<kRows> live;
    for (int32_t head = 0; head < args_.heads_per_item; head += heads_at_once) {
      LoadRanges(head, &live);
      int32_t first = live.Next(0);
      for (int32_t run = 0; first < args_.num_steps; ++run) {
        const bool is_own = run % args_.shares.rows == share_ % args_.shares.rows;
        int32_t step = first;
        for (int32_t other = head; other < head + heads_at_once; ++other) {
          step = first;
          for (int32_t i = 0; i < steps_at_once && step < args_.num_steps; ++i) {
            if (is_own) SetPending(other, step, live.IsPartial(step));
            step = live.Next(step + 1);
          }
        }
        first = step;
      }
    }
    if (pending_step_ != kNone) {
      ListPending(kLastStep);
    } else {
      List(0, 0, flags_ | kLastStep | kDeadStep);
    }
  }

  // A step is only listed when the next one is known: the last of an item is marked.
  __device__ __forceinline__ void SetPending(int32_t head_of_group, int32_t step, bool partial) {
    ListPending(0);
    pending_step_ = step;
    pending_head_ = head_of_group;
    flags_ = (flags_ & kFirstStep) | (partial ? kPartialStep : 0u);
  }

  __device__ __forceinline__ void ListPending(uint32_t more_flags) {
    if (pending_step_ == kNone) return;
    List(pending_head_, pending_step_, flags_ | more_flags);
    flags_ = 0;
  }

  __device__ __forceinline__ void LoadRanges(int32_t head_of_group, LiveSteps<kRows>* live) const {
    const TileRange* ranges = args_.plan.ranges +
                              int64_t{Mask(head_of_group)} * args_.plan.num_column_tiles +
                              key_begin_ / kPlanColumns;
    live->Load(ranges[0],
               ranges[Config::kKeys / kPlanColumns - 1],
               args_.seqlen_q,
               args_.num_steps,
               from_last_row_,
               lane_);
  }

  __device__ __forceinline__ void List(int32_t head_of_group, int32_t counted, uint32_t flags) {
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->entry_empty[place_.stage]), place_.parity ^ 1);
    if (lane_ == 0) {
      const int32_t step = from_last_row_ ? args_.num_steps - 1 - counted : counted;
      const int32_t head = first_head_ + head_of_group;
      const int32_t mask = Mask(head_of_group);
      ListEntry& entry = shared_->entries[place_.stage];
      entry.step = {(batch_ * args_.num_heads + head) * args_.num_steps + step,
                    step * kRows,
                    mask * args_.num_steps + step,
                    flags};
      entry.item = {key_begin_, head_k_, batch_, rank_, share_};
      entry.head = head;
      entry.mask = mask;
      ptx::MbarrierArrive(ptx::SharedAddress(&shared_->entry_full[place_.stage]));
    }
    __syncwarp();  // what follows is kept in registers that the warp shares
    place_.Advance();
  }

  const BackwardArguments& args_;
  Shared* shared_;
  int lane_;
  int32_t heads_per_section_ = 1;
  int32_t waves_per_section_ = 1;
  bool from_last_row_ = false;
  int32_t batch_ = 0;
  int32_t share_ = 0;
  int32_t head_k_ = 0;
  int32_t first_head_ = 0;  // of the query heads that the item is for
  int32_t key_begin_ = 0;
  int32_t rank_ = 0;
  int32_t pending_step_ = kNone;
  int32_t pending_head_ = 0;
  uint32_t flags_ = 0;
  RingPlace<kListEntries> place_;
};

// One thread of the producer: what the list says to shared memory.
template <typename Config, typename Shared = BackwardShared<Config>>
class BackwardLoader {
 public:
  using Element = typename Config::Element;
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
                  kSwizzleColumns,
                  ptx::SharedAddress(&shared_->value_full));
    }
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->key_empty), parity ^ 1);
    shared_->items[parity] = entry.item;
    if (exists) {
      LoadKeyTile(&args_.key, shared_->key, entry.item, Config::kGroupColumns, key_full);
    } else {
      ptx::MbarrierArrive(key_full);
    }
    return exists;
  }

  __device__ __forceinline__ void LoadKeyTile(const CUtensorMap* map,
                                              const Element* tile,
                                              const ItemInfo& item,
                                              int box_columns,
                                              uint32_t full) {
    ptx::MbarrierArriveExpect(full, kKeyTileBytes);
#pragma unroll
    for (int box = 0; box < Config::kBoxes; ++box) {
      ptx::TmaLoad4d(ptx::SharedAddress(tile + box * (kSwizzleColumns * Config::kKeys)),
                     map,
                     box * box_columns,
                     item.head_k,
                     item.key_begin,
                     item.batch,
                     full);
    }
  }

  __device__ __forceinline__ void LoadQuery(const ListEntry& entry) {
    const int stage = query_.stage;
    const bool dead = (entry.step.flags & kDeadStep) != 0;
    const bool partial = (entry.step.flags & kPartialStep) != 0 && !dead;
    const int32_t row_begin = entry.step.row_begin;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->query_empty[stage]), query_.parity ^ 1);
    shared_->steps[stage] = entry.step;
    if (dead) HideRows(stage);
    const uint32_t full = ptx::SharedAddress(&shared_->query_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes + (partial ? kBoundsBytes : 0));
    LoadRowTile(&args_.query, shared_->query[stage], entry, dead ? NoRow() : row_begin, full);
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

  // Past the last: zeros.
  __device__ __forceinline__ int32_t NoRow() const {
    return static_cast<int32_t>(args_.terms.padded_rows);
  }

  // A dead step stands for rows that the keys may well see, where another share has all live ones:
  // it hides them from all keys, and what is loaded are zeros, since 0 times NaN is none.
  __device__ __forceinline__ void HideRows(int stage) {
    for (int key = 0; key < Config::kKeys; ++key) {
      shared_->bounds[stage][key] = make_int4(0, args_.seqlen_q, 0, 0);
    }
    ptx::FenceProxyAsync();
  }

  __device__ __forceinline__ void LoadGradOut(const ListEntry& entry) {
    const bool dead = (entry.step.flags & kDeadStep) != 0;
    const int stage = grad_out_.stage;
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->grad_out_empty[stage]), grad_out_.parity ^ 1);
    const uint32_t full = ptx::SharedAddress(&shared_->grad_out_full[stage]);
    ptx::MbarrierArriveExpect(full, kRowTileBytes + kTermBytes);
    LoadRowTile(&args_.grad_out,
                shared_->grad_out[stage],
                entry,
                dead ? NoRow() : entry.step.row_begin + args_.grad_out_row_shift,
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
