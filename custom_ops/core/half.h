#pragma once

// float16 and bfloat16 as bits, converted to and from float (round to nearest even).

#include <cstdint>
#include <cstring>

namespace flashmask {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float BitsFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float ToFloat(float value) { return value; }

inline float ToFloat(BFloat16 value) { return BitsFloat(uint32_t{value.bits} << 16); }

// The exponent of half is rebiased by a multiplication, which also makes subnormals normal.
inline float ToFloat(Float16 value) {
  constexpr uint32_t kRebias = (254u - 15u) << 23;  // 2^112
  constexpr uint32_t kInfinite = 0x7c00u << 13;
  const uint32_t magnitude = (uint32_t{value.bits} & 0x7fffu) << 13;
  const uint32_t sign = (uint32_t{value.bits} & 0x8000u) << 16;
  const uint32_t finite = FloatBits(BitsFloat(magnitude) * BitsFloat(kRebias));
  const uint32_t bits = magnitude >= kInfinite ? (magnitude | 0x7f800000u) : finite;
  return BitsFloat(sign | bits);
}

template <typename T>
T FromFloat(float value);

template <>
inline float FromFloat<float>(float value) {
  return value;
}

template <>
inline BFloat16 FromFloat<BFloat16>(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x0040u;
  return {static_cast<uint16_t>(value != value ? quiet_nan : rounded)};
}

template <>
inline Float16 FromFloat<Float16>(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  constexpr uint32_t kOverflow = 0x477ff000u;  // 65520, the least that rounds to infinity
  constexpr uint32_t kNormal = 0x38800000u;    // 2^-14
  // Adding 0.5 leaves a subnormal half in the low bits of the sum, rounded by the addition itself.
  const uint32_t subnormal = FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  uint32_t half = magnitude < kNormal ? subnormal : normal;
  if (magnitude >= kOverflow) half = 0x7c00u;
  if (magnitude > 0x7f800000u) half = 0x7e00u;
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace flashmask
