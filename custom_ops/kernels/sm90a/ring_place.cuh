#pragma once

#include <cstdint>

namespace flashmask::sm90a {

// A stage of a ring and the parity of its round.
template <int kStages>
struct RingPlace {
  int32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace flashmask::sm90a
