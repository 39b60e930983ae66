#pragma once

// Failures as exceptions that Paddle understands. Paddle 3.x knows its own EnforceNotMet
// everywhere; any other exception that leaves an operator inside a running program ends the
// process. In 2.6.2, which is eager only, the headers of that class do not compile with current
// CUDA toolkits, and PD_THROW serves.

#include "core/status.h"

#include "paddle/extension.h"

#include <sstream>
#include <string>

#if __has_include("paddle/common/enforce.h")
#include "paddle/common/enforce.h"
#endif
#ifdef PADDLE_THROW
#define FLASHMASK_THROW(Kind, message) PADDLE_THROW(::common::errors::Kind("%s", message))
#else
#define FLASHMASK_THROW(Kind, message) PD_THROW(message)
#endif

namespace flashmask::ops {

// "flashmask_attention: " and the parts, one after the other.
template <typename... Parts>
std::string Message(const Parts&... parts) {
  std::ostringstream text;
  text << "flashmask_attention: ";
  (text << ... << parts);
  return text.str();
}

// ValueError in Python (OSError with 2.6.2).
template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) FLASHMASK_THROW(InvalidArgument, Message(parts...));
}

// "Place(gpu:0)".
inline std::string PlaceText(const paddle::Tensor& tensor) { return tensor.place().DebugString(); }

inline void RequireOk(const Status& status) {
  switch (status.code()) {
    case Status::Code::kOk:
      return;
    case Status::Code::kInvalidArgument:
      FLASHMASK_THROW(InvalidArgument, Message(status.message()));
    case Status::Code::kUnsupported:
      FLASHMASK_THROW(Unimplemented, Message(status.message()));
    case Status::Code::kOutOfMemory:
      FLASHMASK_THROW(ResourceExhausted, Message(status.message()));
  }
}

}  // namespace flashmask::ops
