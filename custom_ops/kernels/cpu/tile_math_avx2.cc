// The arithmetic of a tile for AVX2 with FMA.
#include "core/half.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/tile_math_tables.h"

#include <cmath>
#include <cstdint>

#if defined(__x86_64__)

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace flashmask::cpu {
namespace avx2 {

constexpr int64_t kVectorBytes = 32;
constexpr int kProductRows = 4;  // 8 of 16 vector registers hold sums

#include "kernels/cpu/vector_math.h"
// clang-format off
#include "kernels/cpu/float_units.h"
#include "kernels/cpu/tile_math_impl.h"
#include "kernels/cpu/float_tensors.h"
// clang-format on

}  // namespace avx2

const TileMath& Avx2TileMath() { return avx2::kTileMath; }

}  // namespace flashmask::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif  // __x86_64__
