#pragma once

#include <cmath>
#include <cstdint>

namespace flashmask::ptx {

inline float Exp2(float x) { return x < -126.0f ? 0.0f : exp2f(x); }

inline uint32_t BitMask(int32_t begin, int32_t count) {
  if (begin >= 32 || count <= 0) return 0;
  const uint64_t run = count >= 32 ? 0xffffffffu : (uint64_t{1} << count) - 1;
  return static_cast<uint32_t>(run << begin);
}

inline uint32_t PermuteBytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = low | uint64_t{high} << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> (4 * i) & 15;
    uint32_t byte = bytes >> (8 * (digit & 7)) & 255;
    if ((digit & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

}  // namespace flashmask::ptx
