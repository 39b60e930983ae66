#pragma once

#include "kernels/ptx/wgmma.h"

#include <cstdint>

namespace flashmask::ptx {

template <typename Element>
void MmaM16N8K16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const emulator::Quiet quiet;  // what it reads are registers of others
  const uint32_t b[2] = {b0, b1};
  const uint64_t* left = emulator::MeetWarp(reinterpret_cast<uint64_t>(&a));
  float rows[2][16];
  const int lane = emulator::Lane();
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < 16; ++k) {
      const auto* of = reinterpret_cast<const uint32_t*>(left[lane / 4 * 4 + k % 8 / 2]);
      rows[r][k] = HalfOf<Element>(of[k / 8 * 2 + r], k % 2);
    }
  }
  const uint64_t* right = emulator::MeetWarp(reinterpret_cast<uint64_t>(&b));
  for (int i = 0; i < 4; ++i) {
    const int column = lane % 4 * 2 + i % 2;
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) {
      const auto* of = reinterpret_cast<const uint32_t*>(right[column * 4 + k % 8 / 2]);
      sum += rows[i / 2][k] * HalfOf<Element>(of[k / 8], k % 2);
    }
    c[i] += sum;
  }
  emulator::MeetWarp(0);  // operands live on the stacks of the others
}

}  // namespace flashmask::ptx
