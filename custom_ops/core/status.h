#pragma once

#include <string>
#include <utility>

namespace flashmask {

// Result of everything below `ops`: nothing there throws, `ops` turns a failure into a Paddle
// error.
class [[nodiscard]] Status {
 public:
  enum class Code { kOk, kInvalidArgument, kUnsupported, kOutOfMemory };

  static Status Ok() { return Status(Code::kOk, ""); }
  static Status InvalidArgument(std::string message) {
    return Status(Code::kInvalidArgument, std::move(message));
  }
  static Status Unsupported(std::string message) {
    return Status(Code::kUnsupported, std::move(message));
  }
  static Status OutOfMemory(std::string message) {
    return Status(Code::kOutOfMemory, std::move(message));
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code_;
  std::string message_;
};

}  // namespace flashmask
