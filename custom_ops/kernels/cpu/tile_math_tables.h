#pragma once

// The table of each instruction set; those of another architecture are not defined.

#include "kernels/cpu/tile_math.h"

namespace flashmask::cpu {

const TileMath& PortableTileMath();
const TileMath& Avx2TileMath();
const TileMath& Avx512TileMath();
const TileMath& Avx512Bf16TileMath();  // bfloat16 tensors only

}  // namespace flashmask::cpu
