#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

inline uint16_t HalfAt(uint64_t shared) {
  uint16_t half;
  std::memcpy(&half, emulator::Shared(static_cast<uint32_t>(shared)), sizeof(half));
  return half;
}

// Lane i gives the address of row i % 8 of matrix i / 8.
inline void LdMatrixX4(uint32_t (&to)[4], uint32_t shared) {
  const uint64_t* rows = emulator::MeetWarp(shared);
  const int lane = emulator::Lane();
  for (int i = 0; i < 4; ++i) {
    const uint64_t pair = rows[8 * i + lane / 4] + 4 * (lane % 4);
    to[i] = HalfAt(pair) | uint32_t{HalfAt(pair + 2)} << 16;
  }
  emulator::MeetWarp(0);  // none writes there before all have read
}

inline void LdMatrixX4Trans(uint32_t (&to)[4], uint32_t shared) {
  const uint64_t* rows = emulator::MeetWarp(shared);
  const int lane = emulator::Lane();
  const int column = lane / 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const uint64_t* pair = rows + 8 * i + 2 * (lane % 4);
    to[i] = HalfAt(pair[0] + column) | uint32_t{HalfAt(pair[1] + column)} << 16;
  }
  emulator::MeetWarp(0);
}

}  // namespace flashmask::ptx
