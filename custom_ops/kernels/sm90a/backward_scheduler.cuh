#pragma once

// The warp of the sm90a backward that says what is next; see backward.cuh.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/turn.h"
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
    SetDirection(planned, true);
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
    SetDirection(planned, IsFromLastRow(section * waves_per_section_ + wave));
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

  // The rows at work, and their sums, should stay in the L2. Blocks in a row that see as many rows,
  // more than it holds, would get ever farther apart, as multiprocessors differ in speed and
  // nothing has them begin together again; so who sees as many as the one before begins where
  // another is, and goes round. Under a diagonal blocks that follow each other differ in length,
  // and short ones end them together.
  __device__ __forceinline__ void SetDirection(int32_t planned, bool from_last_row) {
    goes_round_ = GoesRound(planned);
    from_last_row_ = !goes_round_ && from_last_row;
    first_step_ = goes_round_ ? StepAtWork() : 0;
  }

  __device__ __forceinline__ bool GoesRound(int32_t planned) const {
    if (args_.step_at_work == nullptr) return false;
    const int32_t* costs = args_.plan.key_costs + FirstBlockOfMask();
    const int32_t neighbour = planned > 0 ? planned - 1 : 1;
    return costs[planned] > args_.most_held && costs[planned] == costs[neighbour];
  }

  // Of a key block that goes round.
  __device__ __forceinline__ int32_t StepAtWork() const {
    int32_t step = 0;
    if (lane_ == 0) step = ptx::LoadRelaxed(args_.step_at_work);
    return __shfl_sync(kAllLanes, step, 0);
  }

  __device__ __forceinline__ void TellStepAtWork(int32_t counted) const {
    if (lane_ == 0) ptx::StoreRelaxed(args_.step_at_work, StepOf(counted));
  }

  __device__ __forceinline__ int32_t StepOf(int32_t counted) const {
    if (from_last_row_) return args_.num_steps - 1 - counted;
    const int32_t step = counted + first_step_;
    return step < args_.num_steps ? step : step - args_.num_steps;
  }

  // Of some live steps (a run) those of each head of the group that shares the mask, then of the
  // next. So the rows at work are few, and yet a block that a window keeps to some of them does not
  // get far away from its neighbours. Where rows are shared, shares take a run each in turn.
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
        if (goes_round_ && first < args_.num_steps) TellStepAtWork(first);
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
               first_step_,
               lane_);
  }

  __device__ __forceinline__ void List(int32_t head_of_group, int32_t counted, uint32_t flags) {
    ptx::MbarrierWait(ptx::SharedAddress(&shared_->entry_empty[place_.stage]), place_.parity ^ 1);
    if (lane_ == 0) {
      const int32_t step = StepOf(counted);
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
  bool goes_round_ = false;
  int32_t first_step_ = 0;  // of an item that goes round
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

}  // namespace flashmask::sm90a
