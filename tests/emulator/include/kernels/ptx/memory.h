#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

inline void StoreShared(uint32_t shared, uint32_t data) {
  std::memcpy(emulator::Shared(shared), &data, sizeof(data));
}

inline void StoreSharedQuad(uint32_t shared, float a, float b, float c, float d) {
  const float quad[4] = {a, b, c, d};
  std::memcpy(emulator::Shared(shared), quad, sizeof(quad));
}

inline uint4 LoadSharedQuad(uint32_t shared) {
  uint4 data;
  std::memcpy(&data, emulator::Shared(shared), sizeof(data));
  return data;
}

inline void ReduceAdd4(float* to, const float (&values)[4]) {
  for (int i = 0; i < 4; ++i) to[i] += values[i];
}

}  // namespace flashmask::ptx
