#pragma once

#include <cstdint>
#include <functional>

namespace flashmask::cpu {

// How many workers `ParallelFor` will use for so many items.
int32_t NumWorkers(int64_t num_items, int32_t num_threads);

// Calls `run(worker, item)` once for every item in [0, num_items), items handed out in ascending
// order to up to `num_workers` threads that live for this call only: no pool to fight the host
// framework's OpenMP, nothing that a fork could break. `run` must not throw.
void ParallelFor(int64_t num_items,
                 int32_t num_workers,
                 const std::function<void(int32_t worker, int64_t item)>& run);

}  // namespace flashmask::cpu
