#pragma once

#include <cstdint>

namespace flashmask::cpu {

constexpr int64_t kTileRows = 64;
constexpr int64_t kTileColumns = 64;
// Rows of the register tile; row counts of products are rounded up to it.
constexpr int64_t kRowStep = 8;
// Columns of the widest register tile (two 64-byte vectors); widths of products are padded to it.
constexpr int64_t kColumnStep = 32;
// A partial tile is worked through in parts of so many rows, by the columns that are live for them.
constexpr int64_t kPartRows = 32;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kHeadDimMultiple = 8;
constexpr int64_t kCacheLine = 64;  // bytes

static_assert(kTileRows % kRowStep == 0, "a tile must hold whole register tiles");
static_assert(kTileColumns % kColumnStep == 0, "a tile must hold whole register tiles");
static_assert(kTileRows % kPartRows == 0 && kPartRows % kRowStep == 0, "parts are whole steps");

constexpr int64_t RoundUp(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

constexpr int64_t NumTiles(int64_t size, int64_t tile) { return (size + tile - 1) / tile; }

}  // namespace flashmask::cpu
