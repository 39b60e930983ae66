// Units of two bfloat16, the first in the low half. Included by tile_math_impl.h, see there.

constexpr int64_t kDepthPerUnit = 2;

static inline Vector MultiplyAdd(Vector sum, Vector a, Vector b) {
  return reinterpret_cast<Vector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum),
                                                   reinterpret_cast<__m512bh>(a),
                                                   reinterpret_cast<__m512bh>(b)));
}

// By bits: a pair need not look like a normal float.
static inline Vector Broadcast(const float* unit) {
  int32_t bits;
  __builtin_memcpy(&bits, unit, sizeof(bits));
  return reinterpret_cast<Vector>(Splat(bits));
}

template <typename T>
static inline float MakeUnit(const T* element, int64_t stride) {
  static_assert(sizeof(T) == 0, "units of two are bfloat16");
  return 0.0f;
}

template <>
inline float MakeUnit<BFloat16>(const BFloat16* element, int64_t stride) {
  return BitsFloat(uint32_t{element[0].bits} | (uint32_t{element[stride].bits} << 16));
}

static inline void StoreRowUnits(float* row, int64_t column, Vector low, Vector high) {
  Store(row + column / 2,
        reinterpret_cast<Vector>(
            _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low))));
}

static inline __m512i Widen(Vector values) {
  return _mm512_cvtepu16_epi32(
      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(values))));
}

static inline void StoreRowPair(float* tile, int64_t row, int64_t column, Vector even, Vector odd) {
  constexpr unsigned int kHalf = 16;
  const __m512i pairs = _mm512_or_si512(Widen(even), _mm512_slli_epi32(Widen(odd), kHalf));
  Store(tile + row / 2 * kTileColumns + column, reinterpret_cast<Vector>(pairs));
}
