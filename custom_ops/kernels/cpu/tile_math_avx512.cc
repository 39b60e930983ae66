// The arithmetic of a tile for AVX-512 (F, BW, DQ, VL).
#include "core/half.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/tile_math_tables.h"

#include <cmath>
#include <cstdint>

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace flashmask::cpu {
namespace avx512 {

constexpr int64_t kVectorBytes = 64;
constexpr int kProductRows = 8;  // 16 of 32 vector registers hold sums

#include "kernels/cpu/vector_math.h"
// clang-format off
#include "kernels/cpu/float_units.h"
#include "kernels/cpu/tile_math_impl.h"
#include "kernels/cpu/float_tensors.h"
// clang-format on

}  // namespace avx512

const TileMath& Avx512TileMath() { return avx512::kTileMath; }

}  // namespace flashmask::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
