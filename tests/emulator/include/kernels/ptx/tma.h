#pragma once

#include "kernels/ptx/mbarrier.h"

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace flashmask::ptx {

constexpr int kAxes = 4;

// What the emulated cuTensorMapEncodeTiled keeps in a map.
struct TensorMap {
  unsigned char* data;
  int64_t sizes[kAxes];    // column, head, row, batch
  int64_t strides[kAxes];  // bytes
  int32_t box[kAxes];
  int32_t element_bytes;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap), "a map holds it");

// Calls function(address in the tensor or null, address in shared memory) for 16 bytes at a time of
// a box, whose rows have 128 bytes and are swizzled.
template <typename Function>
void EachChunk(const CUtensorMap& map, uint32_t shared, const int32_t (&place)[kAxes], Function f) {
  TensorMap tensor;
  std::memcpy(&tensor, &map, sizeof(tensor));
  const int columns = 16 / tensor.element_bytes;
  for (int row = 0; row < tensor.box[2]; ++row) {
    for (int column = 0; column < tensor.box[0]; column += columns) {
      const int64_t at[kAxes] = {place[0] + column, place[1], place[2] + row, place[3]};
      bool inside = true;
      int64_t offset = 0;
      for (int axis = 0; axis < kAxes; ++axis) {
        inside = inside && at[axis] >= 0 && at[axis] < tensor.sizes[axis];
        offset += at[axis] * tensor.strides[axis];
      }
      const uint32_t line = shared + row * 128 + column * tensor.element_bytes;
      const uint32_t swizzled = line ^ ((line >> 7 & 7) << 4);
      f(inside ? tensor.data + offset : nullptr, emulator::Shared(swizzled));
    }
  }
}

inline uint32_t BoxBytes(const CUtensorMap& map) {
  TensorMap tensor;
  std::memcpy(&tensor, &map, sizeof(tensor));
  return tensor.box[0] * tensor.box[1] * tensor.box[2] * tensor.box[3] * tensor.element_bytes;
}

// The copy engine works later, in order: behind what its caller did until now.
template <typename Function>
EMULATOR_QUIET void Later(Function function) {
  const emulator::Quiet quiet;
  emulator::Block* block = emulator::Now().block;
  emulator::Release(&block->copies);
  block->copies.push_back(function);
}

// A copy from shared memory, which its thread may wait for in part: `write` gets what `read` has
// returned, at some later time.
template <typename Read, typename Write>
EMULATOR_QUIET void LaterOfGroup(Read read, Write write) {
  const emulator::Quiet quiet;
  emulator::Thread* thread = &emulator::Now();
  const auto group = [thread, number = thread->groups.size()]() EMULATOR_QUIET {
    return number < thread->groups.size() ? &thread->groups[number] : &thread->open;
  };
  ++group()->reading;
  ++group()->writing;
  Later([=] {
    const auto data = read();
    const emulator::Quiet quiet;
    emulator::Release(&thread->open);
    --group()->reading;
    thread->block->writes.push_back([=] {
      write(data);
      const emulator::Quiet quiet;
      emulator::Release(&thread->groups);
      --group()->writing;
    });
  });
}

EMULATOR_QUIET inline void CompleteBytes(emulator::Mbarrier* barrier, uint32_t bytes) {
  const emulator::Quiet quiet;
  emulator::Release(TokenOf(*barrier, barrier->parity));
  barrier->bytes -= bytes;
  FinishPhase(*barrier);
}

inline void TmaLoad4d(uint32_t shared,
                      const CUtensorMap* map,
                      int32_t column,
                      int32_t head,
                      int32_t row,
                      int32_t batch,
                      uint32_t barrier) {
  emulator::Mbarrier* completes = &MbarrierAt(barrier);
  Later([=, map = *map] {
    EachChunk(map,
              shared,
              {column, head, row, batch},
              [](const unsigned char* from, unsigned char* to) {
                if (from != nullptr) {
                  std::memcpy(to, from, 16);
                } else {
                  std::memset(to, 0, 16);
                }
              });
    CompleteBytes(completes, BoxBytes(map));
  });
}

inline void BulkLoad(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  emulator::Mbarrier* completes = &MbarrierAt(barrier);
  Later([=] {
    std::memcpy(emulator::Shared(shared), global, bytes);
    CompleteBytes(completes, bytes);
  });
}

inline void BulkStore(void* global, uint32_t shared, uint32_t bytes) {
  const auto read = [=] {
    const unsigned char* from = emulator::Shared(shared);
    return std::vector<unsigned char>(from, from + bytes);
  };
  LaterOfGroup(read, [=](const std::vector<unsigned char>& data) {
    std::memcpy(global, data.data(), data.size());
  });
}

inline void BulkReduceAdd(float* global, uint32_t shared, uint32_t bytes) {
  const auto read = [=] {
    const auto* from = reinterpret_cast<const float*>(emulator::Shared(shared));
    return std::vector<float>(from, from + bytes / sizeof(float));
  };
  LaterOfGroup(read, [=](const std::vector<float>& data) {
    for (size_t i = 0; i < data.size(); ++i) global[i] += data[i];
  });
}

EMULATOR_QUIET inline void BulkCommit() {
  const emulator::Quiet quiet;
  emulator::Thread& thread = emulator::Now();
  thread.groups.push_back(thread.open);
  thread.open = {};
}

template <int kPending, int emulator::BulkGroup::* kWhat>
EMULATOR_QUIET void WaitForGroups() {
  const auto under_way = []() EMULATOR_QUIET {
    int count = 0;
    for (const emulator::BulkGroup& group : emulator::Now().groups) count += group.*kWhat != 0;
    return count;
  };
  while (under_way() > kPending) emulator::Yield();
}

template <int kPending>
EMULATOR_QUIET void BulkWait() {
  const emulator::Quiet quiet;
  WaitForGroups<kPending, &emulator::BulkGroup::writing>();
  emulator::Acquire(&emulator::Now().groups);
}

template <int kPending>
EMULATOR_QUIET void BulkWaitRead() {
  const emulator::Quiet quiet;
  WaitForGroups<kPending, &emulator::BulkGroup::reading>();
  emulator::Acquire(&emulator::Now().open);
}

inline void FenceProxyAsync() {}
inline void FenceProxyGlobal() {}

}  // namespace flashmask::ptx
