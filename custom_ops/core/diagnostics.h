#pragma once

// Switches and counters for tests and for people who want to see what a kernel did.

#include "core/column_bounds.h"
#include "core/status.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace flashmask {

// Tiles of 64 rows by 64 columns and heads, since the last reset, over all calls of the process.
struct TileCounts {
  int64_t skipped = 0;
  int64_t partial = 0;
  int64_t full = 0;

  void Count(TileClass tile_class) {
    ++(tile_class == TileClass::kSkip ? skipped : tile_class == TileClass::kFull ? full : partial);
  }
};

class TileCounter {
 public:
  void Add(const TileCounts& counts);
  TileCounts Read() const;
  void Reset();

 private:
  std::atomic<int64_t> skipped_{0};
  std::atomic<int64_t> partial_{0};
  std::atomic<int64_t> full_{0};
};

TileCounter& ForwardTileCounter();
TileCounter& BackwardTileCounter();

// With skipping off every tile is computed and masked cell by cell; results are bit-identical.
bool TileSkipping();
void SetTileSkipping(bool on);

// With determinism a GPU gives the same bits in every run; the CPU always does.
bool Deterministic();
void SetDeterministic(bool on);

// Bytes of shared memory that a block of a GPU kernel may have, INT32_MAX: what the device has.
// With less, kernels take the tiles that they would on a smaller device.
int32_t SharedMemoryOfBlocks();
void LimitSharedMemoryOfBlocks(int32_t bytes);

// Bytes of the L2 that the heads which a GPU kernel works on together may take, at most; INT64_MAX:
// what it takes by itself. Also what makes a key block of the sm90a backward long enough to go
// round. Ordered sums of sm80 do not ask.
int64_t MostSectionBytes();
void LimitSectionBytes(int64_t bytes);

// Work items that a backward on a GPU should have at least: where key blocks are fewer, several
// items share one (kernels/common/key_shares.cuh). 0: never; negative: the default.
int32_t BackwardItemsWanted();
void SetBackwardItemsWanted(int32_t items);

// Instruction sets of the CPU kernel, in ascending order of preference.
enum class CpuIsa : int { kAuto = -1, kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };

// The one asked for; kAuto unless somebody asked.
CpuIsa RequestedCpuIsa();
// `name` is "auto", "portable", "avx2", "avx512" or "avx512_bf16"; fails if this machine cannot run
// it.
Status RequestCpuIsa(const std::string& name);
// The one that kernels use now: the requested one, or the best that this machine runs.
CpuIsa ActiveCpuIsa();
const char* CpuIsaName(CpuIsa isa);

}  // namespace flashmask
