#pragma once

// Kernels work with powers of 2: what brings scores and logarithms there and back.

#include <algorithm>
#include <cmath>

namespace flashmask {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.69314718055994531f;
// Stands for a scale of 0: keeps -inf * scale at -inf, and is 0 for all finite scores.
constexpr float kSmallestScale = 1e-30f;

// Factor of scores in a forward, for a scale of any sign.
inline float ScaleLog2(float softmax_scale) {
  return std::max(std::fabs(softmax_scale) * kLog2E, kSmallestScale);
}

}  // namespace flashmask
