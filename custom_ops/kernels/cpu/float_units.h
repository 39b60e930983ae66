// Units of one float. Included by tile_math_impl.h, see there.

constexpr int64_t kDepthPerUnit = 1;

static inline Vector MultiplyAdd(Vector sum, Vector a, Vector b) {
  return FusedMultiplyAdd(sum, a, b);
}

static inline Vector Broadcast(const float* unit) { return Splat(*unit); }

template <typename T>
static inline float MakeUnit(const T* element, int64_t) {
  return ToFloat(*element);
}

// Weights of 2 kLanes columns of a row to the rows layout.
static inline void StoreRowUnits(float* row, int64_t column, Vector low, Vector high) {
  Store(row + column, low);
  Store(row + column + kLanes, high);
}

// Cells of two rows, kLanes columns, to the transposed layout.
static inline void StoreRowPair(float* tile, int64_t row, int64_t column, Vector even, Vector odd) {
  Store(tile + row * kTileColumns + column, even);
  Store(tile + (row + 1) * kTileColumns + column, odd);
}
