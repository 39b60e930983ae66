#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

inline void StMatrixX4(uint32_t shared, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
  const uint64_t* rows = emulator::MeetWarp(shared);
  const int lane = emulator::Lane();
  const uint32_t pairs[4] = {m0, m1, m2, m3};
  for (int i = 0; i < 4; ++i) {
    const auto at = static_cast<uint32_t>(rows[8 * i + lane / 4] + 4 * (lane % 4));
    std::memcpy(emulator::Shared(at), &pairs[i], sizeof(uint32_t));
  }
  emulator::MeetWarp(0);
}

}  // namespace flashmask::ptx
