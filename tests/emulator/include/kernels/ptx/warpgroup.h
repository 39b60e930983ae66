#pragma once

namespace flashmask::ptx {

template <int kRegisters>
void RaiseRegisters() {}

template <int kRegisters>
void LowerRegisters() {}

EMULATOR_QUIET inline bool ElectOne() {
  emulator::MeetWarp(0);
  return emulator::Lane() == 0;
}

// What is released by arrivals of a generation and acquired by those who wait for it.
EMULATOR_QUIET inline const void* TokenOf(const emulator::NamedBarrier& barrier, unsigned number) {
  return reinterpret_cast<const char*>(&barrier) + number % 2;
}

EMULATOR_QUIET inline bool Arrive(emulator::NamedBarrier& barrier, int threads) {
  emulator::Release(TokenOf(barrier, barrier.generation));
  if (++barrier.arrived > threads) emulator::Fail("more threads at a barrier than it counts");
  if (barrier.arrived != threads) return false;
  barrier.arrived = 0;
  ++barrier.generation;
  emulator::Progress();
  return true;
}

EMULATOR_QUIET inline void NamedBarrierSync(int number, int threads) {
  emulator::NamedBarrier& barrier = emulator::Now().block->named[number];
  const unsigned generation = barrier.generation;
  if (!Arrive(barrier, threads)) {
    while (barrier.generation == generation) emulator::Yield();
  }
  emulator::Acquire(TokenOf(barrier, generation));
}

EMULATOR_QUIET inline void NamedBarrierArrive(int number, int threads) {
  Arrive(emulator::Now().block->named[number], threads);
}

}  // namespace flashmask::ptx
