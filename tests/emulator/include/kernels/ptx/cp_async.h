#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

inline uint32_t SharedAddress(const void* pointer) { return emulator::AddressOf(pointer); }

inline void CpAsync16(uint32_t shared, const void* global, bool valid) {
  if (valid) {
    std::memcpy(emulator::Shared(shared), global, 16);
  } else {
    std::memset(emulator::Shared(shared), 0, 16);
  }
}

inline void CpAsyncCommit() {}

template <int kPending>
void CpAsyncWait() {}

}  // namespace flashmask::ptx
