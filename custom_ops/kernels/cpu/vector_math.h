// Vectors of floats in GCC and Clang vector extensions. Included by tile_math_impl.h inside the
// namespace and under the target pragma of one instruction set, which defines kVectorBytes.
//
// Exp: Cody-Waite reduction by ln 2, then 1 + r q(r) on [-ln2/2, ln2/2] with q of degree 4 fitted
// for the least relative error (9.2e-8, exact at 0); J.-M. Muller, Elementary Functions, chapters
// 3, 11.

constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(float));
typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef float UnalignedVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef int32_t UnalignedIntVector
    __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

static inline Vector Load(const float* source) {
  return *reinterpret_cast<const UnalignedVector*>(source);
}

static inline IntVector Load(const int32_t* source) {
  return *reinterpret_cast<const UnalignedIntVector*>(source);
}

static inline void Store(float* destination, Vector value) {
  *reinterpret_cast<UnalignedVector*>(destination) = value;
}

static inline Vector Splat(float value) { return value - Vector{}; }
static inline IntVector Splat(int32_t value) { return value - IntVector{}; }

static inline Vector Select(IntVector mask, Vector yes, Vector no) { return mask ? yes : no; }

// sum + a * b, rounded once where the machine can. Said explicitly, and the compiler is told not to
// contract on its own: the backward must form scores to the bit as the forward did.
template <typename Floats>
static inline Floats FusedMultiplyAdd(Floats sum, Floats a, Floats b) {
#if defined(__x86_64__)
  if constexpr (sizeof(Floats) == 64) {
    return reinterpret_cast<Floats>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a),
                                                    reinterpret_cast<__m512>(b),
                                                    reinterpret_cast<__m512>(sum)));
  } else if constexpr (sizeof(Floats) == 32) {
    return reinterpret_cast<Floats>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a),
                                                    reinterpret_cast<__m256>(b),
                                                    reinterpret_cast<__m256>(sum)));
  } else {
    return sum + a * b;
  }
#elif defined(__ARM_NEON)
  return vfmaq_f32(sum, a, b);
#else
  return sum + a * b;
#endif
}

// p * 2^whole, 0 where that is far below what a float holds.
template <typename Floats>
static inline Floats ScaleByPowerOf2(Floats p, Floats whole) {
#if defined(__x86_64__)
  if constexpr (sizeof(Floats) == 64) {
    return reinterpret_cast<Floats>(
        _mm512_scalef_ps(reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(whole)));
  }
#endif
  constexpr int32_t kExponentBias = 127;
  constexpr int32_t kMantissaBits = 23;
  constexpr float kLeastExponent = -126.0f;
  const IntVector exponent = __builtin_convertvector(whole, IntVector) + kExponentBias;
  const Floats scaled = p * reinterpret_cast<Floats>(exponent << kMantissaBits);
  return Select(whole < Splat(kLeastExponent), Splat(0.0f), scaled);
}

// e^x for x at most about 88; -inf gives 0, NaN stays.
static inline Vector Exp(Vector x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kSmallest = -1000.0f;    // below this the result is 0 whatever x is
  const Vector clamped = Select(x < Splat(kSmallest), Splat(kSmallest), x);
  const Vector whole = FusedMultiplyAdd(Splat(kRounder), clamped, Splat(kLog2E)) - kRounder;
  Vector r = FusedMultiplyAdd(clamped, whole, Splat(-kLn2High));
  r = FusedMultiplyAdd(r, whole, Splat(-kLn2Low));
  Vector p = Splat(0.008290314115583897f);
  p = FusedMultiplyAdd(Splat(0.04189793020486832f), p, r);
  p = FusedMultiplyAdd(Splat(0.1666763573884964f), p, r);
  p = FusedMultiplyAdd(Splat(0.4999915063381195f), p, r);
  p = FusedMultiplyAdd(Splat(0.9999997019767761f), p, r);
  p = FusedMultiplyAdd(Splat(1.0f), p, r);
  return ScaleByPowerOf2(p, whole);
}

// The larger of two, lane by lane; NaN wins and stays, as in a dense softmax.
struct LargerOf {
  template <typename Floats>
  static inline Floats Combine(Floats a, Floats b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

struct SumOf {
  template <typename Floats>
  static inline Floats Combine(Floats a, Floats b) {
    return a + b;
  }
};

// Folds lanes in halves: few steps, always in the same order.
template <typename Operation, int64_t kBytes>
static inline float Fold(const float* lanes) {
  constexpr int64_t kHalf = kBytes / 2 / static_cast<int64_t>(sizeof(float));
  if constexpr (kHalf == 1) {
    return Operation::Combine(lanes[0], lanes[1]);
  } else {
    typedef float Half __attribute__((vector_size(kBytes / 2)));
    Half low, high;
    __builtin_memcpy(&low, lanes, sizeof(low));
    __builtin_memcpy(&high, lanes + kHalf, sizeof(high));
    const Half folded = Operation::Combine(low, high);
    float rest[kHalf];
    __builtin_memcpy(rest, &folded, sizeof(folded));
    return Fold<Operation, kBytes / 2>(rest);
  }
}

template <typename Operation>
static inline float Fold(Vector values) {
  float lanes[kLanes];
  Store(lanes, values);
  return Fold<Operation, kVectorBytes>(lanes);
}
