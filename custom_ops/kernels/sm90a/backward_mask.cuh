#pragma once

// The mask as the sm90a backward sees it: which rows of a step each key masks.

#include "kernels/ptx/arithmetic.h"

#include <cuda_runtime.h>

#include <cstdint>

namespace flashmask::sm90a {

// Of a step's rows, a thread holds rows 8 j + 2 (lane % 4) + {0, 1} of its keys, for j = 0, 1, ...:
// how many of them are before `row`.
template <int kRows>
__device__ __forceinline__ int32_t OwnRowsBefore(int32_t row, int32_t pair) {
  const int32_t clipped = min(max(row, 0), kRows);
  return clipped / 8 * 2 + min(max(clipped % 8 - pair, 0), 2);
}

// Bits [begin, end); none if begin >= end.
__device__ __forceinline__ uint32_t BitRun(int32_t begin, int32_t end) {
  return ptx::BitMask(begin, max(end - begin, 0));
}

// Bit i is set if the thread's row i of the step (2 j + {0, 1} as above) is masked for a key;
// `bounds` is lower begin, lower end, upper begin, upper end and `pair` 2 (lane % 4).
template <int kRows>
__device__ __forceinline__ uint32_t MaskedRows(int4 bounds, int32_t row_begin, int32_t pair) {
  const int32_t lower_begin = OwnRowsBefore<kRows>(bounds.x - row_begin, pair);
  const int32_t lower_end = OwnRowsBefore<kRows>(bounds.y - row_begin, pair);
  const int32_t upper_begin = OwnRowsBefore<kRows>(bounds.z - row_begin, pair);
  const int32_t upper_end = OwnRowsBefore<kRows>(bounds.w - row_begin, pair);
  return BitRun(lower_begin, lower_end) | BitRun(upper_begin, upper_end);
}

// Bits 2 j and 2 j + 1 of `bits`, each spread over 16: shifted to the top of their byte, they are
// its sign, which the permutation repeats.
__device__ __forceinline__ uint32_t SpreadPair(uint32_t bits, int j) {
  const uint32_t byte = static_cast<uint32_t>(j) / 4;
  const int shift = 7 - 2 * j % 8;
  constexpr uint32_t kSign = 8;    // added to the number of a byte: its sign in all 8 bits
  constexpr uint32_t kSecond = 4;  // added to the number of a byte of the second operand
  const uint32_t low = (kSign + byte) * 0x11;
  const uint32_t high = (kSign + kSecond + byte) * 0x1100;
  return ptx::PermuteBytes(bits << shift, bits << (shift - 1), low + high);
}

}  // namespace flashmask::sm90a
