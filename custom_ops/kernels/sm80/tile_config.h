#pragma once

// Tile numbers of the sm80 kernels, by head dim. Shared memory per block must fit twice into the
// 100 KB of the smallest sm_8x part for 64, once for 128 there and twice into the 164 KB of sm_80.

#include <cstdint>

namespace flashmask::sm80 {

template <typename Element_, int kHeadDim_>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kBlockRows = 128;
  static constexpr int kBlockColumns = 64;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kRowsPerWarp = kBlockRows / kWarps;

  static_assert(kHeadDim % 64 == 0, "a row of a tile is whole 128-byte segments for the swizzle");
  static_assert(kRowsPerWarp % 16 == 0, "a warp's rows are whole rows of mma tiles");
};

template <typename Element_, int kHeadDim_, int kBlockRows_, int kGradOutStages_>
struct BackwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kBlockRows = kBlockRows_;  // rows of a step
  static constexpr int kBlockColumns = 128;       // keys that a block owns
  static constexpr int kGradOutStages = kGradOutStages_;
  // Whether weights are stored between the steps of the product after theirs: 1 % at 128, but at 64
  // steps of 128 rows spill then and lose 3 %.
  static constexpr bool kStoresBeside = kHeadDim == 128;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  // How the warps share a product: rows by columns of its result.
  static constexpr int kScoreWarpRows = kBlockRows / 32;  // scores [rows, keys], grad_query
  static constexpr int kScoreWarpColumns = kWarps / kScoreWarpRows;
  static constexpr int kKeyWarpRows = 4;  // grad_key and grad_value [keys, head_dim]
  static constexpr int kKeyWarpColumns = kWarps / kKeyWarpRows;

  static_assert(kHeadDim % 64 == 0, "a row of a tile is whole 128-byte segments for the swizzle");
};

// What a head dim takes where there is enough shared memory. At 128 a second buffer of grad_out
// saves a barrier a step; at 64 steps of 128 rows read less from shared memory for each product.
template <typename Element, int kHeadDim>
using WideBackward =
    BackwardConfig<Element, kHeadDim, kHeadDim == 64 ? 128 : 64, kHeadDim == 64 ? 1 : 2>;

// What fits the 99 KB of the smallest parts.
template <int kHeadDim>
constexpr bool kHasNarrowBackward = kHeadDim == 64;

template <typename Element, int kHeadDim>
using NarrowBackward = BackwardConfig<Element, kHeadDim, 64, 1>;

}  // namespace flashmask::sm80
