#pragma once

#include "core/params.h"
#include "core/status.h"

namespace flashmask::cpu {

Status Backward(const BackwardParams& params);

}  // namespace flashmask::cpu
