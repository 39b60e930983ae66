#pragma once

#include <cstdint>

namespace flashmask::ptx {

// Whoever reads a word does so again and again, until another has written it.
EMULATOR_QUIET inline int32_t LoadAcquire(const int32_t* word) {
  emulator::Yield();
  emulator::Acquire(word);
  return *word;
}

EMULATOR_QUIET inline int32_t LoadRelaxed(const int32_t* word) { return *word; }

EMULATOR_QUIET inline void StoreRelaxed(int32_t* word, int32_t value) { *word = value; }

EMULATOR_QUIET inline void StoreRelease(int32_t* word, int32_t value) {
  emulator::Release(word);
  *word = value;
  emulator::Progress();
}

}  // namespace flashmask::ptx
