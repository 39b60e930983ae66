#pragma once

#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

constexpr int kAsyncBytes = 16;

inline uint32_t SharedAddress(const void* pointer) { return emulator::AddressOf(pointer); }

// What was there is lost at once; what comes is there when it is waited for, or earlier (Yield).
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

// Takes the copies of a thread's groups but the last `pending` ones, the last copy first half of
// the time: what is asked for twice must have been waited for between.
EMULATOR_QUIET inline std::vector<emulator::AsyncCopy> TakeAsync(size_t pending) {
  const emulator::Quiet quiet;
  std::deque<std::vector<emulator::AsyncCopy>>& groups = emulator::Now().async;
  std::vector<emulator::AsyncCopy> copies;
  for (; groups.size() > pending; groups.pop_front()) {
    copies.insert(copies.end(), groups.front().begin(), groups.front().end());
  }
  if (emulator::Draw() % 2 == 0) std::reverse(copies.begin(), copies.end());
  return copies;
}

template <int kPending>
void CpAsyncWait() {
  for (const emulator::AsyncCopy& copy : TakeAsync(kPending)) FinishAsync(copy);
}

}  // namespace flashmask::ptx
