#pragma once

#include <cstdint>

namespace flashmask::ptx {

inline emulator::Mbarrier& MbarrierAt(uint32_t barrier) {
  return emulator::Now().block->mbarriers[barrier / 8];
}

inline void FinishPhase(emulator::Mbarrier& barrier) {
  if (barrier.pending < 0) emulator::Fail("more arrivals than a barrier counts");
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.parity ^= 1;
  barrier.pending = barrier.arrivals;
  emulator::Progress();
}

inline void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  const int count = static_cast<int>(arrivals);
  MbarrierAt(barrier) = {count, count, 0, 0};
}

inline void MbarrierInitFence() {}

inline void MbarrierArrive(uint32_t barrier) {
  --MbarrierAt(barrier).pending;
  FinishPhase(MbarrierAt(barrier));
}

inline void MbarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  MbarrierAt(barrier).bytes += bytes;
  MbarrierArrive(barrier);
}

inline void MbarrierWait(uint32_t barrier, uint32_t parity) {
  while (MbarrierAt(barrier).parity == parity) emulator::Yield();
}

}  // namespace flashmask::ptx
