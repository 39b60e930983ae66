#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace flashmask::ptx {

constexpr bool kMustWriteOperands = false;
constexpr int kProductRows = 64;
constexpr int kProductDepth = 16;

EMULATOR_QUIET inline emulator::Products& ProductsOfGroup() {
  emulator::Thread& me = emulator::Now();
  return me.block->products[me.number / emulator::kWarpgroup];
}

// What all threads of a warpgroup must do together: in no branch that only some of them take.
enum class Step : uint64_t { kFence, kCommit, kProduct, kAfter, kWait };
constexpr int kStepShift = 56;  // above all addresses
constexpr uint64_t kBrought = (uint64_t{1} << kStepShift) - 1;

// Returns this thread's place in its warpgroup when all of it are here, with what each brought.
EMULATOR_QUIET inline int MeetGroup(Step step, uint64_t brought, const uint64_t** all = nullptr) {
  emulator::Thread& me = emulator::Now();
  const int place = me.number % emulator::kWarpgroup;
  auto& group = me.block->warpgroups[me.number / emulator::kWarpgroup];
  const uint64_t mine = static_cast<uint64_t>(step) << kStepShift | brought;
  const uint64_t* found = emulator::Meet(group, place, mine);
  for (int i = 0; place == 0 && i < emulator::kWarpgroup; ++i) {
    if (found[i] >> kStepShift != mine >> kStepShift) {
      emulator::Fail("threads of a warpgroup are at different instructions");
    }
  }
  if (all != nullptr) *all = found;
  return place;
}

inline void WgmmaFence() { MeetGroup(Step::kFence, 0); }

EMULATOR_QUIET inline void WgmmaCommit() {
  const emulator::Quiet quiet;
  if (MeetGroup(Step::kCommit, 0) == 0) {
    emulator::Products& products = ProductsOfGroup();
    products.committed.push_back(std::move(products.open));
    products.open.clear();
  }
  emulator::Now().products_are_unused = false;
  MeetGroup(Step::kAfter, 0);
}

// What products give until the next commit is no number, and what they read may be anything.
EMULATOR_QUIET inline void WgmmaUnused() { emulator::Now().products_are_unused = true; }

template <int kPending>
EMULATOR_QUIET void WgmmaWait() {
  const emulator::Quiet quiet;
  if (MeetGroup(Step::kWait, 0) == 0) {
    auto& committed = ProductsOfGroup().committed;
    while (committed.size() > kPending) {
      for (const auto& product : committed.front()) product();
      committed.pop_front();
    }
  }
  MeetGroup(Step::kAfter, 0);
}

template <int kCount>
void WgmmaPin(float (&)[kCount]) {}

// What a product that starts anew must not read.
template <int kCount>
void WgmmaDefine(float (&sums)[kCount]) {
  for (float& sum : sums) sum = NAN;
}

inline uint64_t SwizzledTile(uint32_t shared, uint32_t leading, uint32_t stride = 1024) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return uint64_t{(shared & 0x3FFFF) >> 4} | (uint64_t{leading >> 4} << 16) |
         (uint64_t{stride >> 4} << 32) | kSwizzle128;
}

inline uint64_t Shift(uint64_t tile, int bytes) { return tile + bytes / 16; }

template <typename Element>
EMULATOR_QUIET float AsFloat(uint16_t bits) {
  Element element;
  std::memcpy(&element, &bits, sizeof(bits));
  return static_cast<float>(element);
}

// The lower half of a register, or the upper one.
template <typename Element>
EMULATOR_QUIET float HalfOf(uint32_t pair, int which) {
  return AsFloat<Element>(static_cast<uint16_t>(which == 0 ? pair : pair >> 16));
}

// Where element (line, k) of a swizzled tile is; a transposed one has its lines along its rows.
template <bool kTransposed>
EMULATOR_QUIET const unsigned char* TileByte(uint64_t tile, int line, int k) {
  const uint32_t start = static_cast<uint32_t>(tile & 0x3FFF) << 4;
  const uint32_t leading = static_cast<uint32_t>(tile >> 16 & 0x3FFF) << 4;
  const uint32_t stride = static_cast<uint32_t>(tile >> 32 & 0x3FFF) << 4;
  const int row = kTransposed ? k : line;
  const int column = kTransposed ? line : k;
  const uint32_t linear =
      start + row / 8 * stride + row % 8 * 128 + column / 64 * leading + column % 64 * 2;
  return emulator::Shared(linear ^ ((linear >> 7 & 7) << 4));
}

template <typename Element, bool kTransposed>
EMULATOR_QUIET float TileElement(uint64_t tile, int line, int k) {
  uint16_t bits;
  std::memcpy(&bits, TileByte<kTransposed>(tile, line, k), sizeof(bits));
  return AsFloat<Element>(bits);
}

// A product of a warpgroup: each thread's sums and left operand in registers, if it is there.
struct Product {
  std::array<float*, emulator::kWarpgroup> sums;
  std::array<std::array<uint32_t, 4>, emulator::kWarpgroup> left;
  bool left_is_shared;
  uint64_t a;
  uint64_t b;
  bool keep;
  bool unused;
};

template <typename Element, int kColumns, bool kTransposedA, bool kTransposedB>
EMULATOR_QUIET void MultiplyGroup(const Product& product) {
  float left[kProductRows][kProductDepth];
  float right[kProductDepth][kColumns];
  for (int k = 0; k < kProductDepth; ++k) {
    for (int n = 0; n < kColumns; ++n) {
      right[k][n] = TileElement<Element, kTransposedB>(product.b, n, k);
    }
  }
  for (int row = 0; row < kProductRows; ++row) {
    for (int k = 0; k < kProductDepth; ++k) {
      const int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
      const uint32_t pair = product.left[thread][k / 8 * 2 + row % 16 / 8];
      left[row][k] = product.left_is_shared ? TileElement<Element, kTransposedA>(product.a, row, k)
                                            : HalfOf<Element>(pair, k % 2);
    }
    float sums[kColumns] = {};
    for (int k = 0; k < kProductDepth; ++k) {
      for (int n = 0; n < kColumns; ++n) sums[n] += left[row][k] * right[k][n];
    }
    for (int n = 0; n < kColumns; ++n) {
      const int thread = row / 16 * 32 + row % 8 * 4 + n % 8 / 2;
      float* to = product.sums[thread] + n / 8 * 4 + row % 16 / 8 * 2 + n % 2;
      *to = product.unused ? NAN : (product.keep ? *to : 0.0f) + sums[n];
    }
  }
}

// What a thread brings to a product.
struct Operands {
  float* sums;
  const uint32_t* left;  // in registers, or null
  uint64_t a;
  uint64_t b;
  bool keep;
};

#ifdef FLASHMASK_EMULATOR_RACES
// A warp reads all of the right operand, and its rows of the left one.
template <bool kTransposed>
void ReadTile(uint64_t tile, int line_begin, int line_end) {
  for (int line = line_begin; line < line_end; line += kTransposed ? 8 : 1) {
    for (int k = 0; k < kProductDepth; k += kTransposed ? 1 : 8) {
      const unsigned char* at = TileByte<kTransposed>(tile, line, k);
      const auto* quad = reinterpret_cast<const volatile uint64_t*>(at);
      (void)quad[0];
      (void)quad[1];
    }
  }
}
#endif

template <typename Element, int kColumns, bool kTransposedA, bool kTransposedB>
EMULATOR_QUIET void MultiplyTogether(Operands mine) {
#ifdef FLASHMASK_EMULATOR_RACES
  const int number = emulator::Now().number;
  if (number % emulator::kWarp == 0 && !emulator::Now().products_are_unused) {
    const int row = number % emulator::kWarpgroup / emulator::kWarp * 16;
    ReadTile<kTransposedB>(mine.b, 0, kColumns);
    if (mine.left == nullptr) ReadTile<kTransposedA>(mine.a, row, row + 16);
  }
#endif
  const emulator::Quiet quiet;
  const uint64_t* all;
  if (MeetGroup(Step::kProduct, reinterpret_cast<uint64_t>(&mine), &all) == 0) {
    Product product;
    product.left_is_shared = mine.left == nullptr;
    product.a = mine.a;
    product.b = mine.b;
    product.keep = mine.keep;
    product.unused = emulator::Now().products_are_unused;
    for (int i = 0; i < emulator::kWarpgroup; ++i) {
      const auto& of = *reinterpret_cast<const Operands*>(all[i] & kBrought);
      product.sums[i] = of.sums;
      if (of.left != nullptr) std::copy(of.left, of.left + 4, product.left[i].begin());
    }
    const auto multiply = [product] {
      MultiplyGroup<Element, kColumns, kTransposedA, kTransposedB>(product);
    };
    if (emulator::AreProductsLate()) {
      ProductsOfGroup().open.push_back(multiply);
    } else {
      multiply();
    }
  }
  MeetGroup(Step::kAfter, 0);
}

template <typename Element, int kColumns, bool kTransposedA, bool kTransposedB>
void WgmmaShared(float (&sums)[kColumns / 2], uint64_t a, uint64_t b, int32_t keep) {
  MultiplyTogether<Element, kColumns, kTransposedA, kTransposedB>({sums, nullptr, a, b, keep != 0});
}

template <typename Element, int kColumns, bool kTransposedB>
void WgmmaRegisters(float (&sums)[kColumns / 2],
                    uint32_t a0,
                    uint32_t a1,
                    uint32_t a2,
                    uint32_t a3,
                    uint64_t b,
                    int32_t keep) {
  const uint32_t left[4] = {a0, a1, a2, a3};
  MultiplyTogether<Element, kColumns, false, kTransposedB>({sums, left, 0, b, keep != 0});
}

}  // namespace flashmask::ptx
