#pragma once

namespace flashmask::ptx {

inline int NotHoisted(int value) { return value; }

}  // namespace flashmask::ptx
