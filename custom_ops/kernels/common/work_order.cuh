#pragma once

// Which block of a grid does which row block of which head.

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

  __device__ __forceinline__ WorkItem Item(int64_t block,
                                           const MaskPlanView& plan,
                                           int64_t num_heads,
                                           int64_t heads_per_mask,
                                           int64_t num_heads_mask) const {
    const int64_t section_items = heads_per_section * plan.num_row_blocks;
    const int64_t first_head = block / section_items * heads_per_section;
    const int64_t heads = min(heads_per_section, num_heads_total - first_head);
    const int64_t in_section = block % section_items;
    const int64_t rank = in_section / heads;
    const int64_t head_of_all = first_head + in_section % heads;
    WorkItem item;
    item.batch = head_of_all / num_heads;
    item.head = head_of_all % num_heads;
    item.mask = item.batch * num_heads_mask + item.head / heads_per_mask;
    item.row_block = plan.order[item.mask * plan.num_row_blocks + rank];
    return item;
  }
};

// What of the L2 the keys and values of a section of heads may take.
constexpr int64_t kSectionBytes = int64_t{24} << 20;

inline WorkOrder OrderOf(const AttentionSizes& sizes) {
  const int64_t bytes_per_head = 2 * 2 * sizes.seqlen_k * sizes.head_dim;
  const int64_t group = sizes.num_heads / sizes.num_heads_k;
  const int64_t key_heads =
      std::max<int64_t>(1, kSectionBytes / std::max<int64_t>(1, bytes_per_head));
  WorkOrder order;
  order.num_heads_total = sizes.batch * sizes.num_heads;
  order.heads_per_section = std::min(order.num_heads_total, key_heads * group);
  return order;
}

}  // namespace flashmask
