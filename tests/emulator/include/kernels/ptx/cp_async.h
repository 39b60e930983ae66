#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

constexpr int kAsyncBytes = 16;

inline uint32_t SharedAddress(const void* pointer) { return emulator::AddressOf(pointer); }

// What was there is lost at once, and what comes is there when it is waited for.
inline void CpAsync16(uint32_t shared, const void* global, bool valid) {
  std::memset(emulator::Shared(shared), 0xff, kAsyncBytes);
  const emulator::Quiet quiet;
  emulator::Now().async_open.push_back({shared, valid ? global : nullptr});
}

EMULATOR_QUIET inline void CpAsyncCommit() {
  const emulator::Quiet quiet;
  emulator::Thread& thread = emulator::Now();
  thread.async.push_back(std::move(thread.async_open));
  thread.async_open.clear();
}

inline void FinishAsync(const emulator::AsyncCopy& copy) {
  unsigned char* to = emulator::Shared(copy.shared);
  if (copy.global != nullptr) {
    std::memcpy(to, copy.global, kAsyncBytes);
  } else {
    std::memset(to, 0, kAsyncBytes);
  }
}

template <int kPending>
void CpAsyncWait() {
  std::deque<std::vector<emulator::AsyncCopy>>& groups = emulator::Now().async;
  while (groups.size() > kPending) {
    for (const emulator::AsyncCopy& copy : groups.front()) FinishAsync(copy);
    const emulator::Quiet quiet;
    groups.pop_front();
  }
}

}  // namespace flashmask::ptx
