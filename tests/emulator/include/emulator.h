#pragma once

// The CUDA language for g++, as far as the kernels of custom_ops use it: threads of a block are
// fibers of one CPU thread, and whatever a warp or block does together is a meeting of fibers. This
// header comes before all others (-include); those in kernels/ptx take the place of the real ones.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

using std::isnan;

#define __CUDACC__ 1
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

// With FLASHMASK_EMULATOR_RACES the kernels are built with -fsanitize=thread, which then knows what
// orders accesses of their threads: barriers, but no meeting of a warp for another purpose.
#ifdef FLASHMASK_EMULATOR_RACES
extern "C" {
void __tsan_acquire(void*);
void __tsan_release(void*);
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
#define EMULATOR_QUIET __attribute__((no_sanitize("thread")))
#else
#define EMULATOR_QUIET
#endif

namespace emulator {

inline void Acquire(const void* token) {
#ifdef FLASHMASK_EMULATOR_RACES
  __tsan_acquire(const_cast<void*>(token));
#endif
}

inline void Release(const void* token) {
#ifdef FLASHMASK_EMULATOR_RACES
  __tsan_release(const_cast<void*>(token));
#endif
}

// While there is one, accesses of this thread are the emulator's own.
struct Quiet {
#ifdef FLASHMASK_EMULATOR_RACES
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}
#endif
};

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

struct Block;

// Where threads come together: the last one to come lets all go on. What each brings is kept for
// one more meeting, so that none is overwritten before all have seen it.
template <int kThreads>
struct Meeting {
  int arrived = 0;
  unsigned generation = 0;
  uint64_t brought[2][kThreads] = {};
};

struct Mbarrier {
  int arrivals = 0;
  int pending = 0;
  int64_t bytes = 0;
  uint32_t parity = 0;  // of the phase under way
};

struct NamedBarrier {
  int arrived = 0;
  unsigned generation = 0;
};

// Bulk copies from shared memory that one thread started together: those that still read there, and
// those whose results are not all written.
struct BulkGroup {
  int reading = 0;
  int writing = 0;
};

// A copy of 16 bytes to shared memory that one thread started and waits for; of zeros, if null. It
// may be done at any time from then on, in any order with others.
struct AsyncCopy {
  uint32_t shared;
  const void* global;
};

// A thread: its place, its stack, and the groups of copies that it waits for.
struct Thread {
  dim3 index;
  int number = 0;  // in the block
  Block* block = nullptr;
  void* stack_pointer = nullptr;
  void* fiber = nullptr;  // as -fsanitize=thread knows it
  bool finished = false;
  std::vector<BulkGroup> groups;  // committed
  BulkGroup open;                 // not yet
  std::deque<std::vector<AsyncCopy>> async;
  std::vector<AsyncCopy> async_open;
  bool products_are_unused = false;  // those that it takes part in until the next commit
};

// Products of a warpgroup that are under way: those of each committed group, and the others.
struct Products {
  std::deque<std::vector<std::function<void()>>> committed;
  std::vector<std::function<void()>> open;
};

struct Block {
  dim3 index;
  dim3 grid;
  dim3 threads_in_block;
  unsigned char* shared = nullptr;
  int alive = 0;
  std::vector<Thread> threads;
  std::vector<Meeting<kWarp>> warps;
  std::vector<Meeting<kWarpgroup>> warpgroups;
  std::vector<Products> products;   // of each warpgroup
  std::vector<Mbarrier> mbarriers;  // by their address over 8
  NamedBarrier named[16];
  std::vector<std::function<void()>> copies;  // of the copy engine, in order, not yet done
  std::vector<std::function<void()>> writes;  // of copies from shared memory that have read it
};

Thread& Now();
uint32_t Draw();
void Yield();
void Progress();         // something happened that another may wait for
bool AreProductsLate();  // in this launch: worked out when they are waited for, not at once
unsigned char* DynamicShared();
uint32_t AddressOf(const void* shared);
unsigned char* Shared(uint32_t address);
[[noreturn]] void Fail(const char* what);

using Body = std::function<void()>;
void Run(dim3 grid, dim3 threads, size_t shared_bytes, const Body& body);

inline int Lane() { return Now().number % kWarp; }

template <int kThreads>
EMULATOR_QUIET const uint64_t* Meet(Meeting<kThreads>& meeting, int place, uint64_t brought) {
  const unsigned generation = meeting.generation;
  uint64_t* kept = meeting.brought[generation % 2];
  kept[place] = brought;
  if (++meeting.arrived == kThreads) {
    meeting.arrived = 0;
    ++meeting.generation;
    Progress();
  } else {
    while (meeting.generation == generation) Yield();
  }
  return kept;
}

EMULATOR_QUIET inline const uint64_t* MeetWarp(uint64_t brought) {
  Thread& me = Now();
  return Meet(me.block->warps[me.number / kWarp], me.number % kWarp, brought);
}

template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <typename T>
T Value(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

inline void WholeWarp(unsigned mask) {
  if (mask != 0xffffffffu) Fail("a meeting of a part of a warp");
}

// grid<<<...>>>: see build.py.
class Launch {
 public:
  Launch(dim3 grid, dim3 threads, size_t shared_bytes = 0, cudaStream_t = nullptr)
      : grid_(grid),
        threads_(threads),
        shared_bytes_(shared_bytes) {}

  template <typename... Parameters, typename... Arguments>
  void operator()(void (*kernel)(Parameters...), Arguments&&... arguments) const {
    const std::tuple<std::decay_t<Parameters>...> kept(std::forward<Arguments>(arguments)...);
    Run(grid_, threads_, shared_bytes_, [&] { std::apply(kernel, kept); });
  }

 private:
  dim3 grid_;
  dim3 threads_;
  size_t shared_bytes_;
};

}  // namespace emulator

#define threadIdx (::emulator::Now().index)
#define blockIdx (::emulator::Now().block->index)
#define blockDim (::emulator::Now().block->threads_in_block)
#define gridDim (::emulator::Now().block->grid)

void __syncthreads();

EMULATOR_QUIET inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::WholeWarp(mask);
  emulator::Thread& me = emulator::Now();
  auto& warp = me.block->warps[me.number / emulator::kWarp];
  const void* token = warp.brought[warp.generation % 2];
  emulator::Release(token);
  emulator::MeetWarp(0);
  emulator::Acquire(token);
}

template <typename T>
EMULATOR_QUIET T __shfl_sync(unsigned mask, T value, int from) {
  emulator::WholeWarp(mask);
  return emulator::Value<T>(emulator::MeetWarp(emulator::Bits(value))[from % emulator::kWarp]);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, emulator::Lane() ^ distance);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = emulator::Lane();
  return __shfl_sync(mask, value, lane >= distance ? lane - distance : lane);
}

EMULATOR_QUIET inline unsigned __ballot_sync(unsigned mask, bool vote) {
  emulator::WholeWarp(mask);
  const uint64_t* votes = emulator::MeetWarp(vote);
  unsigned bits = 0;
  for (int lane = 0; lane < emulator::kWarp; ++lane) bits |= unsigned(votes[lane] != 0) << lane;
  return bits;
}

inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }

template <typename T, typename Function>
EMULATOR_QUIET T ReduceWarp(unsigned mask, T value, Function function) {
  emulator::WholeWarp(mask);
  const uint64_t* values = emulator::MeetWarp(emulator::Bits(value));
  T result = emulator::Value<T>(values[0]);
  for (int lane = 1; lane < emulator::kWarp; ++lane) {
    result = function(result, emulator::Value<T>(values[lane]));
  }
  return result;
}

template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  return ReduceWarp(mask, value, [](T a, T b) { return a > b ? a : b; });
}
template <typename T>
T __reduce_min_sync(unsigned mask, T value) {
  return ReduceWarp(mask, value, [](T a, T b) { return a < b ? a : b; });
}
template <typename T>
T __reduce_add_sync(unsigned mask, T value) {
  return ReduceWarp(mask, value, [](T a, T b) { return a + b; });
}

inline void __threadfence() { emulator::Progress(); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(unsigned(bits)); }

template <typename T>
T __ldcg(const T* from) {
  return *from;
}
template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
T __ldg(const T* from) {
  return *from;
}

template <typename T, typename U>
EMULATOR_QUIET T atomicAdd(T* to, U value) {
  emulator::Acquire(to);
  const T before = *to;
  *to = before + static_cast<T>(value);
  emulator::Release(to);
  emulator::Progress();
  return before;
}

template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
