#include "kernels/cpu/tile_math.h"

#include "core/diagnostics.h"
#include "kernels/cpu/tile_math_tables.h"

namespace flashmask::cpu {

const TileMath& ActiveTileMath() {
  switch (ActiveCpuIsa()) {
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return Avx2TileMath();
    case CpuIsa::kAvx512:
      return Avx512TileMath();
#endif
    default:
      return PortableTileMath();
  }
}

}  // namespace flashmask::cpu
