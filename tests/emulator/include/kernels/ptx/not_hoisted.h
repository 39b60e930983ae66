#pragma once

namespace flashmask::ptx {

inline int NotHoisted(int value) { return value; }

inline void StayBehind(bool never) {
  if (never) emulator::Fail("what never happens");
}

}  // namespace flashmask::ptx
