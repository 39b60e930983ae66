#include "kernels/cpu/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace flashmask::cpu {

int32_t NumWorkers(int64_t num_items, int32_t num_threads) {
  return static_cast<int32_t>(
      std::max<int64_t>(1, std::min<int64_t>(num_items, std::max<int32_t>(1, num_threads))));
}

void ParallelFor(int64_t num_items,
                 int32_t num_workers,
                 const std::function<void(int32_t worker, int64_t item)>& run) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int32_t worker) {
    for (int64_t item = next++; item < num_items; item = next++) run(worker, item);
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(num_workers));
  for (int32_t worker = 1; worker < num_workers; ++worker) {
    try {
      threads.emplace_back(work, worker);
    } catch (const std::exception&) {
      break;  // No more threads or memory to be had: the ones that run take all items.
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace flashmask::cpu
