#pragma once

#include <cstdint>

namespace flashmask::ptx {

// Whoever reads a word does so again and again, until another has written it.
inline int32_t LoadAcquire(const int32_t* word) {
  emulator::Yield();
  return *word;
}

inline void StoreRelease(int32_t* word, int32_t value) {
  *word = value;
  emulator::Progress();
}

}  // namespace flashmask::ptx
