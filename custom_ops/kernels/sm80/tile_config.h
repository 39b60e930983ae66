#pragma once

// Tile numbers of the sm80 kernels, by head dim, chosen for registers and shared memory. A block
// has 227 KB on sm_90, 163 KB on sm_80 and 99 KB on sm_86 and sm_89; every head dim has tiles for
// 99 KB.

#include <cstdint>

namespace flashmask::sm80 {

template <typename Element_,
          int kHeadDim_,
          int kBlockRows_,
          int kWarps_,
          int kBlocksPerSm_,
          int kListTilesPerWarp_ = 256>
struct ForwardConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;  // what the tiles hold; the tensors' may be less
  static constexpr int kBlockRows = kBlockRows_;
  static constexpr int kBlockColumns = 64;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kRowsPerWarp = kBlockRows / kWarps;
  static constexpr int kListTilesPerWarp = kListTilesPerWarp_;  // of a list of live tiles

  static_assert(kHeadDim % 32 == 0, "a row of a tile is whole 64-byte segments for the swizzle");
  static_assert(kRowsPerWarp % 16 == 0, "a warp's rows are whole rows of mma tiles");
};

// Tiles to choose from: the first for which a device has shared memory is taken.
template <typename... Tiles>
struct TileList {};

// Rows of a warp share what it reads of keys and values: 32 of them where the output of 32 rows
// fits its registers, else 16. Calls with few rows (few_rows.h) take tiles of 64. At 256 two small
// blocks serve where a multiprocessor holds both (FA2's choice for sm_90); one large block reads
// keys and values half as often where it does not.
template <typename Element, int kHeadDim>
struct ForwardTiles {
  using Narrow = ForwardConfig<Element, kHeadDim, 128, 4, 2>;
  using Wide = Narrow;
  using FewRows = ForwardConfig<Element, kHeadDim, 64, 4, 3>;
};

template <typename Element>
struct ForwardTiles<Element, 192> {
  using Narrow = ForwardConfig<Element, 192, 128, 8, 1, 32>;
  using Wide = Narrow;
  using FewRows = ForwardConfig<Element, 192, 64, 4, 2>;
};

template <typename Element>
struct ForwardTiles<Element, 256> {
  using Narrow = ForwardConfig<Element, 256, 64, 4, 2, 96>;
  using Wide = ForwardConfig<Element, 256, 128, 8, 1>;
  using FewRows = Narrow;
};

// `kGradOutStages` buffers of grad_out: a second one saves a barrier a step. The warps share each
// product as so many rows of warps, by the rest in columns:
//   kScoreWarpRows  scores [rows, keys]
//   kQueryWarpRows  grad_query [rows, head_dim]
//   kKeyWarpRows    grad_key and grad_value [keys, head_dim]
template <int kBlockRows_,
          int kBlockColumns_,
          int kGradOutStages_,
          int kWarps_,
          int kScoreWarpRows_,
          int kQueryWarpRows_,
          int kKeyWarpRows_>
struct BackwardTiles {
  static constexpr int kBlockRows = kBlockRows_;        // rows of a step
  static constexpr int kBlockColumns = kBlockColumns_;  // keys that a block owns
  static constexpr int kGradOutStages = kGradOutStages_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kScoreWarpRows = kScoreWarpRows_;
  static constexpr int kScoreWarpColumns = kWarps / kScoreWarpRows;
  static constexpr int kQueryWarpRows = kQueryWarpRows_;
  static constexpr int kQueryWarpColumns = kWarps / kQueryWarpRows;
  static constexpr int kKeyWarpRows = kKeyWarpRows_;
  static constexpr int kKeyWarpColumns = kWarps / kKeyWarpRows;
};

template <typename Element_, int kHeadDim_, typename Tiles>
struct BackwardConfig : Tiles {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  // Whether weights are stored between the steps of the product after theirs: 1 % at 128, but at 64
  // steps of 128 rows spill then and lose 3 %.
  static constexpr bool kStoresBeside = kHeadDim == 128;

  static_assert(kHeadDim % 32 == 0, "a row of a tile is whole 64-byte segments for the swizzle");
};

// By head dim, the one that wants most shared memory first. Steps and key blocks are as large as
// sums fit registers: at 192 and 256 those of 64 keys. At 64 steps of 128 rows read less from
// shared memory for each product.
template <int kHeadDim>
struct BackwardChoices;

template <>
struct BackwardChoices<64> {
  using Tiles =
      TileList<BackwardTiles<128, 128, 1, 8, 4, 4, 4>, BackwardTiles<64, 128, 1, 8, 2, 2, 4>>;
};

template <>
struct BackwardChoices<96> {
  using Tiles =
      TileList<BackwardTiles<64, 128, 2, 8, 2, 4, 4>, BackwardTiles<64, 64, 2, 8, 4, 4, 4>>;
};

template <>
struct BackwardChoices<128> {
  using Tiles =
      TileList<BackwardTiles<64, 128, 2, 8, 2, 2, 4>, BackwardTiles<64, 64, 1, 8, 4, 2, 2>>;
};

template <>
struct BackwardChoices<192> {
  using Tiles =
      TileList<BackwardTiles<64, 64, 2, 8, 4, 2, 2>, BackwardTiles<32, 64, 1, 8, 2, 2, 2>>;
};

template <>
struct BackwardChoices<256> {
  using Tiles = TileList<BackwardTiles<64, 64, 2, 8, 4, 2, 2>,
                         BackwardTiles<32, 64, 2, 8, 2, 2, 2>,
                         BackwardTiles<32, 32, 1, 4, 2, 1, 1>>;
};

}  // namespace flashmask::sm80
