#pragma once

#include "core/status.h"

#include <cstdint>

namespace flashmask {

// Sets `*compute_capability` (10 * major + minor) of a CUDA device. The GPU kernels bring the
// function; in a library without them there is none.
using DeviceQuery = Status (*)(int32_t device, int32_t* compute_capability);

struct DeviceQueryRegistration {
  explicit DeviceQueryRegistration(DeviceQuery query);
};

Status ComputeCapability(int32_t device, int32_t* compute_capability);

}  // namespace flashmask
