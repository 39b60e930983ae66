#pragma once

// Which block of a grid does which row block of which head.

#include "core/diagnostics.h"
#include "core/params.h"
#include "kernels/common/mask_plan.h"

#include <algorithm>
#include <cstdint>

namespace flashmask {

struct WorkItem {
  int64_t batch;
  int64_t head;
  int64_t mask;  // batch and mask head
  int64_t row_block;
};

// Heads (over the batch) are taken in sections whose keys and values fit the L2 together; within a
// section all heads start with their longest row block.
struct WorkOrder {
  int64_t num_heads_total;
  int64_t heads_per_section;

  // In integers of 32 bits, which do since there are fewer than 2^31 items, or of 64 where ptxas
  // then spills less.
  template <typename Integer>
  __device__ __forceinline__ WorkItem Item(Integer number,
                                           const MaskPlanView& plan,
                                           Integer num_heads,
                                           Integer heads_per_mask,
                                           Integer num_heads_mask) const {
    const auto section_heads = static_cast<Integer>(heads_per_section);
    const Integer section_items = section_heads * static_cast<Integer>(plan.num_row_blocks);
    const Integer first_head = number / section_items * section_heads;
    const Integer heads = min(section_heads, static_cast<Integer>(num_heads_total) - first_head);
    const Integer in_section = number % section_items;
    const Integer rank = in_section / heads;
    const Integer head_of_all = first_head + in_section % heads;
    WorkItem item;
    item.batch = head_of_all / num_heads;
    const Integer head = head_of_all % num_heads;
    item.head = head;
    item.mask = item.batch * num_heads_mask + head / heads_per_mask;
    item.row_block = plan.order[item.mask * plan.num_row_blocks + rank];
    return item;
  }
};

// What of the L2 the keys and values of a section of heads may take.
constexpr int64_t kSectionBytes = int64_t{24} << 20;

inline WorkOrder OrderOf(const AttentionSizes& sizes) {
  const int64_t bytes_per_head = 2 * 2 * sizes.seqlen_k * sizes.head_dim;
  const int64_t group = sizes.num_heads / sizes.num_heads_k;
  const int64_t bytes = std::min(kSectionBytes, MostSectionBytes());
  const int64_t key_heads = std::max<int64_t>(1, bytes / std::max<int64_t>(1, bytes_per_head));
  WorkOrder order;
  order.num_heads_total = sizes.batch * sizes.num_heads;
  order.heads_per_section = std::min(order.num_heads_total, key_heads * group);
  return order;
}

}  // namespace flashmask
