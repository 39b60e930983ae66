#include "core/diagnostics.h"

namespace flashmask {
namespace {

constexpr CpuIsa kIsas[] = {CpuIsa::kAuto,
                            CpuIsa::kPortable,
                            CpuIsa::kAvx2,
                            CpuIsa::kAvx512,
                            CpuIsa::kAvx512Bf16};

std::atomic<bool> tile_skipping{true};
std::atomic<bool> deterministic{false};
std::atomic<int32_t> shared_memory_of_blocks{INT32_MAX};
std::atomic<int64_t> most_section_bytes{INT64_MAX};
// Four for each of a H200's 132 multiprocessors.
constexpr int32_t kItemsWanted = 528;
std::atomic<int32_t> backward_items_wanted{kItemsWanted};
std::atomic<int> requested_isa{static_cast<int>(CpuIsa::kAuto)};

bool MachineRuns(CpuIsa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case CpuIsa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case CpuIsa::kAvx512Bf16:
      return MachineRuns(CpuIsa::kAvx512) && __builtin_cpu_supports("avx512bf16");
#else
    case CpuIsa::kAvx2:
    case CpuIsa::kAvx512:
    case CpuIsa::kAvx512Bf16:
      return false;
#endif
    default:
      return true;
  }
}

CpuIsa BestIsa() {
  if (MachineRuns(CpuIsa::kAvx512Bf16)) return CpuIsa::kAvx512Bf16;
  if (MachineRuns(CpuIsa::kAvx512)) return CpuIsa::kAvx512;
  if (MachineRuns(CpuIsa::kAvx2)) return CpuIsa::kAvx2;
  return CpuIsa::kPortable;
}

}  // namespace

void TileCounter::Add(const TileCounts& counts) {
  skipped_ += counts.skipped;
  partial_ += counts.partial;
  full_ += counts.full;
}

TileCounts TileCounter::Read() const { return {skipped_.load(), partial_.load(), full_.load()}; }

void TileCounter::Reset() {
  skipped_ = 0;
  partial_ = 0;
  full_ = 0;
}

TileCounter& ForwardTileCounter() {
  static TileCounter counter;
  return counter;
}

TileCounter& BackwardTileCounter() {
  static TileCounter counter;
  return counter;
}

bool TileSkipping() { return tile_skipping; }
void SetTileSkipping(bool on) { tile_skipping = on; }

bool Deterministic() { return deterministic; }
void SetDeterministic(bool on) { deterministic = on; }

int32_t SharedMemoryOfBlocks() { return shared_memory_of_blocks; }
void LimitSharedMemoryOfBlocks(int32_t bytes) { shared_memory_of_blocks = bytes; }

int64_t MostSectionBytes() { return most_section_bytes; }
void LimitSectionBytes(int64_t bytes) { most_section_bytes = bytes; }

int32_t BackwardItemsWanted() { return backward_items_wanted; }
void SetBackwardItemsWanted(int32_t items) {
  backward_items_wanted = items < 0 ? kItemsWanted : items;
}

CpuIsa RequestedCpuIsa() { return static_cast<CpuIsa>(requested_isa.load()); }

Status RequestCpuIsa(const std::string& name) {
  for (const CpuIsa isa : kIsas) {
    if (name != CpuIsaName(isa)) continue;
    if (!MachineRuns(isa)) {
      return Status::Unsupported("the CPU instruction set " + name +
                                 " does not run on this machine; the best that does is " +
                                 CpuIsaName(BestIsa()));
    }
    requested_isa = static_cast<int>(isa);
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "the CPU instruction set must be auto, portable, avx2, avx512 or avx512_bf16; got '" + name +
      "'");
}

CpuIsa ActiveCpuIsa() {
  const CpuIsa requested = RequestedCpuIsa();
  static const CpuIsa kBest = BestIsa();
  return requested == CpuIsa::kAuto ? kBest : requested;
}

const char* CpuIsaName(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPortable:
      return "portable";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    default:
      return "auto";
  }
}

}  // namespace flashmask
