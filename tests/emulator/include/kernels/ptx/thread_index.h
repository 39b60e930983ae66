#pragma once

namespace flashmask::ptx {

inline int ThreadIndex() { return static_cast<int>(threadIdx.x); }

}  // namespace flashmask::ptx
