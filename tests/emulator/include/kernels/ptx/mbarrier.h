#pragma once

#include <cstdint>

namespace flashmask::ptx {

EMULATOR_QUIET inline emulator::Mbarrier& MbarrierAt(uint32_t barrier) {
  return emulator::Now().block->mbarriers[barrier / 8];
}

// What is released by arrivals of a phase and acquired by those who wait for it.
EMULATOR_QUIET inline const void* TokenOf(const emulator::Mbarrier& barrier, uint32_t parity) {
  return reinterpret_cast<const char*>(&barrier) + parity;
}

EMULATOR_QUIET inline void FinishPhase(emulator::Mbarrier& barrier) {
  if (barrier.pending < 0) emulator::Fail("more arrivals than a barrier counts");
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.parity ^= 1;
  barrier.pending = barrier.arrivals;
  emulator::Progress();
}

EMULATOR_QUIET inline void MbarrierInit(uint32_t barrier, uint32_t arrivals) {
  const int count = static_cast<int>(arrivals);
  MbarrierAt(barrier) = {count, count, 0, 0};
}

inline void MbarrierInitFence() {}

EMULATOR_QUIET inline void MbarrierArrive(uint32_t barrier) {
  emulator::Mbarrier& counted = MbarrierAt(barrier);
  emulator::Release(TokenOf(counted, counted.parity));
  --counted.pending;
  FinishPhase(MbarrierAt(barrier));
}

EMULATOR_QUIET inline void MbarrierArriveExpect(uint32_t barrier, uint32_t bytes) {
  MbarrierAt(barrier).bytes += bytes;
  MbarrierArrive(barrier);
}

EMULATOR_QUIET inline void MbarrierWait(uint32_t barrier, uint32_t parity) {
  while (MbarrierAt(barrier).parity == parity) emulator::Yield();
  emulator::Acquire(TokenOf(MbarrierAt(barrier), parity));
}

EMULATOR_QUIET inline bool MbarrierTest(uint32_t barrier, uint32_t parity) {
  if (MbarrierAt(barrier).parity == parity) return false;
  emulator::Acquire(TokenOf(MbarrierAt(barrier), parity));
  return true;
}

}  // namespace flashmask::ptx
