#pragma once

// How often a warp arrives at a barrier: once, by one lane, after all have come together.
//
// FLASHMASK_EVERY_LANE_ARRIVES makes each lane arrive: the same order of events, in a form that
// racecheck of compute-sanitizer may follow better (tools/sanitize.sh builds it for that).

#include "kernels/sm90a/tile_config.h"

#include <cstdint>

namespace flashmask::sm90a {

#ifdef FLASHMASK_EVERY_LANE_ARRIVES
constexpr bool kEveryLaneArrives = true;
#else
constexpr bool kEveryLaneArrives = false;
#endif
constexpr uint32_t kWarpArrivals = kEveryLaneArrives ? kWarp : 1;

}  // namespace flashmask::sm90a
