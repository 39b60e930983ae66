#pragma once

#include "core/params.h"
#include "core/status.h"

namespace flashmask::cpu {

Status Forward(const ForwardParams& params);

}  // namespace flashmask::cpu
