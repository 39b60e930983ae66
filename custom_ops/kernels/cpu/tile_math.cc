#include "kernels/cpu/tile_math.h"

#include "core/diagnostics.h"
#include "kernels/cpu/tile_math_tables.h"

namespace flashmask::cpu {

const TileMath& ActiveTileMath(DataType dtype) {
  switch (ActiveCpuIsa()) {
#if defined(__x86_64__)
    case CpuIsa::kAvx2:
      return Avx2TileMath();
    case CpuIsa::kAvx512:
      return Avx512TileMath();
    case CpuIsa::kAvx512Bf16:
      return dtype == DataType::kBFloat16 ? Avx512Bf16TileMath() : Avx512TileMath();
#endif
    default:
      (void)dtype;
      return PortableTileMath();
  }
}

}  // namespace flashmask::cpu
