// Blocks and their threads as fibers, the copy engine, and the CUDA runtime's functions that the
// library calls. See include/emulator.h.

#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>

#define EMULATOR_EXPORTED __attribute__((visibility("default")))

namespace emulator {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr int kSharedBytes = 227 << 10;
constexpr uint32_t kStaticShared = 0x80000000u;
constexpr int kRoundsInAWarp = 64;
constexpr int kShortRuns = 4;  // one run of a warp in so many ends within kShortRounds
constexpr int kShortRounds = 16;
constexpr int kEarlyCopies = 16;  // yields of a thread, on average, that its copies take
constexpr int kLateWrites = 16;   // passes, on average
constexpr int kPatience = 20000;  // passes over all threads without any progress

int Environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

unsigned char anchor;  // static variables of this library are not far away
Thread* now = nullptr;
#ifdef FLASHMASK_EMULATOR_RACES
constexpr bool kMayBeEarly = false;  // a copy that is waited for is seen by the race detector
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
}
constexpr unsigned kNoOrder = 1;
void* scheduler_fiber = nullptr;
#else
constexpr bool kMayBeEarly = true;
#endif
void* scheduler = nullptr;  // its stack pointer
const Body* body_of_threads = nullptr;
uint64_t progress = 0;
const char* failure = nullptr;  // of the launch under way, or the last one
bool products_are_late = false;
bool writes_are_last = false;
bool copies_are_early = false;  // in this launch: done at some time, not only when waited for
std::mt19937& Generator() {
  static std::mt19937 draw(static_cast<unsigned>(Environment("FLASHMASK_EMULATOR_SEED", 0)));
  return draw;
}

// Keeps what a function must keep, on the stack, and goes on where another stack was left.
extern "C" void EmulatorSwitch(void** save, void* load);
asm(R"(
.text
.globl EmulatorSwitch
.type EmulatorSwitch, @function
EmulatorSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size EmulatorSwitch, .-EmulatorSwitch
)");

void LeaveThread(bool is_last);

void Enter() {
  (*body_of_threads)();
  now->finished = true;
  --now->block->alive;
  Progress();
  LeaveThread(true);
  std::abort();
}

unsigned char* NewStacks(size_t count) {
  void* memory = mmap(nullptr,
                      count * kStackBytes,
                      PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1,
                      0);
  if (memory == MAP_FAILED) std::abort();
  return static_cast<unsigned char*>(memory);
}

// A block that is on a multiprocessor, with its memory.
struct Resident {
  Block block;
  std::unique_ptr<unsigned char[]> shared;
  unsigned char* stacks;
  size_t count;
  void* engine = nullptr;  // the copy engine, as -fsanitize=thread knows it

  Resident(dim3 grid, dim3 index, dim3 threads) : count(threads.x * threads.y * threads.z) {
    constexpr size_t kAlignment = 1024;
    shared.reset(new unsigned char[kSharedBytes + kAlignment]);
    std::memset(shared.get(), 0xff, kSharedBytes + kAlignment);
    const auto start = reinterpret_cast<uintptr_t>(shared.get());
    block.shared = shared.get() + (kAlignment - start % kAlignment) % kAlignment;
    block.index = index;
    block.grid = grid;
    block.threads_in_block = threads;
    block.alive = static_cast<int>(count);
    block.threads.resize(count);
    block.warps.resize((count + kWarp - 1) / kWarp);
    block.warpgroups.resize((count + kWarpgroup - 1) / kWarpgroup);
    block.products.resize(block.warpgroups.size());
    block.mbarriers.resize(kSharedBytes / 8);
    stacks = NewStacks(count);
    for (size_t i = 0; i < count; ++i) {
      Thread& thread = block.threads[i];
      thread.number = static_cast<int>(i);
      thread.index = dim3(i % threads.x, i / threads.x % threads.y, i / threads.x / threads.y);
      thread.block = &block;
      auto** top = reinterpret_cast<void**>(stacks + (i + 1) * kStackBytes);
      *--top = nullptr;  // so that the stack is as after a call
      *--top = reinterpret_cast<void*>(Enter);
      thread.stack_pointer = top - 6;  // what EmulatorSwitch takes back
      std::memset(thread.stack_pointer, 0, 6 * sizeof(void*));
    }
  }
  ~Resident() {
    const Quiet quiet;
#ifdef FLASHMASK_EMULATOR_RACES
    for (Thread& thread : block.threads) {
      if (thread.fiber != nullptr) __tsan_destroy_fiber(thread.fiber);
    }
    if (engine != nullptr) __tsan_destroy_fiber(engine);
#endif
    munmap(stacks, count * kStackBytes);
  }
};

void RunThread(Thread* thread) {
  now = thread;
#ifdef FLASHMASK_EMULATOR_RACES
  scheduler_fiber = __tsan_get_current_fiber();
  const bool is_new = thread->fiber == nullptr;
  if (is_new) thread->fiber = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(thread->fiber, is_new ? 0 : kNoOrder);
#endif
  EmulatorSwitch(&scheduler, thread->stack_pointer);
  now = nullptr;
}

// Back to the scheduler, which called RunThread.
void LeaveThread(bool is_last) {
#ifdef FLASHMASK_EMULATOR_RACES
  __tsan_switch_to_fiber(scheduler_fiber, is_last ? 0 : kNoOrder);
#endif
  EmulatorSwitch(&now->stack_pointer, scheduler);
}

// A warp mostly runs on while its threads meet, so that few passes find all of them waiting.
void RunWarp(Block* block, size_t warp) {
  const size_t end = std::min(block->threads.size(), (warp + 1) * kWarp);
  const int rounds = Draw() % kShortRuns == 0 ? 1 + Draw() % kShortRounds : kRoundsInAWarp;
  for (int round = 0; round < rounds; ++round) {
    const unsigned before = block->warps[warp].generation;
    for (size_t i = warp * kWarp; i < end && failure == nullptr; ++i) {
      if (!block->threads[i].finished) RunThread(&block->threads[i]);
    }
    if (block->warps[warp].generation == before || failure != nullptr) return;
  }
}

void RunFirst(std::vector<std::function<void()>>* waiting, size_t count) {
  for (size_t i = 0; i < count; ++i) (*waiting)[i]();
  const Quiet quiet;
  waiting->erase(waiting->begin(), waiting->begin() + static_cast<std::ptrdiff_t>(count));
  if (count > 0) Progress();
}

// Some of the copies that were asked for; all when nobody else can go on. What they write to global
// memory is often late, in half of the launches until then, and then all comes at once.
void RunCopies(Block* block, bool all) {
  const size_t count = block->copies.size();
  const bool writes = all || (!writes_are_last && Draw() % kLateWrites == 0);
  RunFirst(&block->writes, writes ? block->writes.size() : 0);
  RunFirst(&block->copies, all ? count : std::min<size_t>(count, Draw() % 3));
}

void RunBlock(Block* block, bool idle, void** engine) {
  // Copies name their block's memory by Shared().
  now = &block->threads[0];
#ifdef FLASHMASK_EMULATOR_RACES
  void* before = __tsan_get_current_fiber();
  const bool is_new = *engine == nullptr;
  if (is_new) *engine = __tsan_create_fiber(0);
  __tsan_switch_to_fiber(*engine, is_new ? 0 : kNoOrder);
  Acquire(&block->copies);
#endif
  RunCopies(block, idle);
#ifdef FLASHMASK_EMULATOR_RACES
  __tsan_switch_to_fiber(before, kNoOrder);
#endif
  now = nullptr;
  const size_t count = block->warps.size();
  const size_t first = Draw() % count;
  for (size_t i = 0; i < count; ++i) RunWarp(block, (first + i) % count);
}

bool IsDone(const Block& block) {
  return block.alive == 0 && block.copies.empty() && block.writes.empty();
}

}  // namespace

Thread& Now() { return *now; }

uint32_t Draw() { return static_cast<uint32_t>(Generator()()); }

// At times the thread's copies are done meanwhile, those of no group too.
void Yield() {
  const bool has_copies = !now->async.empty() || !now->async_open.empty();
  if (copies_are_early && has_copies && Draw() % kEarlyCopies == 0) {
    now->async.push_back(std::move(now->async_open));
    now->async_open.clear();
    for (const AsyncCopy& copy : flashmask::ptx::TakeAsync(0)) flashmask::ptx::FinishAsync(copy);
  }
  LeaveThread(false);
}

void Progress() { ++progress; }

bool AreProductsLate() { return products_are_late; }

unsigned char* DynamicShared() { return now->block->shared; }

// Dynamic shared memory starts at 0; static variables are around kStaticShared.
uint32_t AddressOf(const void* pointer) {
  const auto* byte = static_cast<const unsigned char*>(pointer);
  const std::ptrdiff_t dynamic = byte - now->block->shared;
  if (dynamic >= 0 && dynamic < kSharedBytes) return static_cast<uint32_t>(dynamic);
  return kStaticShared + static_cast<uint32_t>(byte - &anchor);
}

unsigned char* Shared(uint32_t address) {
  if (address < kSharedBytes) return now->block->shared + address;
  if (address < kStaticShared / 2) Fail("an address beyond shared memory");
  return &anchor + (std::ptrdiff_t{address} - std::ptrdiff_t{kStaticShared});
}

// Ends the launch: its threads are left where they are.
void Fail(const char* what) {
  failure = what;
  LeaveThread(true);
  std::abort();
}

// Blocks with dynamic shared memory run at the same time, as many as there are multiprocessors;
// others one after the other, since their shared variables are static ones here.
void Run(dim3 grid, dim3 threads, size_t shared_bytes, const Body& body) {
  if (failure != nullptr) return;
  body_of_threads = &body;
  products_are_late = Draw() % 2 == 0;
  copies_are_early = kMayBeEarly && Draw() % 2 == 0;
  writes_are_last = Draw() % 2 == 0;
  const size_t most = shared_bytes > 0 ? Environment("FLASHMASK_EMULATED_MULTIPROCESSORS", 3) : 1;
  const size_t count = size_t{grid.x} * grid.y * grid.z;
  std::deque<std::unique_ptr<Resident>> residents;
  size_t next = 0;
  uint64_t before = progress;
  for (int idle = 0; (next < count || !residents.empty()) && failure == nullptr;) {
    while (next < count && residents.size() < most) {
      const dim3 index(next % grid.x, next / grid.x % grid.y, next / grid.x / grid.y);
      residents.push_back(std::make_unique<Resident>(grid, index, threads));
      ++next;
    }
    for (const auto& resident : residents) RunBlock(&resident->block, idle > 2, &resident->engine);
    const auto done = [](const auto& resident) { return IsDone(resident->block); };
    const Quiet quiet;
    residents.erase(std::remove_if(residents.begin(), residents.end(), done), residents.end());
    idle = progress == before ? idle + 1 : 0;
    before = progress;
    if (idle > kPatience) failure = "threads wait for each other for ever";
  }
  body_of_threads = nullptr;
}

}  // namespace emulator

void __syncthreads() { flashmask::ptx::NamedBarrierSync(0, emulator::Now().block->alive); }

namespace {

CUresult EncodeMap(CUtensorMap* map,
                   CUtensorMapDataType,
                   cuuint32_t axes,
                   void* data,
                   const cuuint64_t* sizes,
                   const cuuint64_t* strides,
                   const cuuint32_t* box,
                   const cuuint32_t*,
                   CUtensorMapInterleave,
                   CUtensorMapSwizzle swizzle,
                   CUtensorMapL2promotion,
                   CUtensorMapFloatOOBfill) {
  using flashmask::ptx::kAxes;
  if (axes != kAxes || swizzle != CU_TENSOR_MAP_SWIZZLE_128B) return CUDA_ERROR_INVALID_VALUE;
  flashmask::ptx::TensorMap tensor;
  tensor.data = static_cast<unsigned char*>(data);
  tensor.element_bytes = 2;
  for (int axis = 0; axis < kAxes; ++axis) {
    tensor.sizes[axis] = static_cast<int64_t>(sizes[axis]);
    tensor.strides[axis] = axis == 0 ? 2 : static_cast<int64_t>(strides[axis - 1]);
    tensor.box[axis] = static_cast<int32_t>(box[axis]);
  }
  std::memcpy(map, &tensor, sizeof(tensor));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// What happens when is drawn anew from `seed`.
EMULATOR_EXPORTED void emulator_draw_from(uint32_t seed) { emulator::Generator().seed(seed); }

EMULATOR_EXPORTED uint32_t emulator_draw() { return emulator::Draw(); }

cudaError_t cudaGetLastError() {
  return emulator::failure == nullptr ? cudaSuccess : cudaErrorLaunchFailure;
}

const char* cudaGetErrorString(cudaError_t) {
  const char* what = emulator::failure;
  emulator::failure = nullptr;
  return what == nullptr ? "no error" : what;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulator::kSharedBytes;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = emulator::kSharedBytes + 1024;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = emulator::Environment("FLASHMASK_EMULATED_MULTIPROCESSORS", 3);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char*,
                                             void** entry,
                                             unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *entry = reinterpret_cast<void*>(EncodeMap);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char* name,
                                    void** entry,
                                    unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(name, entry, 0, flags, result);
}
}
