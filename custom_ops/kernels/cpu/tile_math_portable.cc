// The arithmetic of a tile for any CPU with 16-byte vectors (SSE2, NEON).
#include "core/half.h"
#include "kernels/cpu/tile_math.h"
#include "kernels/cpu/tile_math_tables.h"

#include <cmath>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace flashmask::cpu {
namespace portable {

constexpr int64_t kVectorBytes = 16;
constexpr int kProductRows = 4;  // 8 of 16 vector registers hold sums

#include "kernels/cpu/vector_math.h"
// clang-format off
#include "kernels/cpu/float_units.h"
#include "kernels/cpu/tile_math_impl.h"
#include "kernels/cpu/float_tensors.h"
// clang-format on

}  // namespace portable

const TileMath& PortableTileMath() { return portable::kTileMath; }

}  // namespace flashmask::cpu
