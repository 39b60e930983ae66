// The arithmetic of a tile in plain C++ and vector extensions. Each tile_math_<isa>.cc includes this
// once, inside a namespace of its own and under its own target pragma, after defining kVectorBytes,
// kProductRows. Nothing here may call an inline function of the standard library: the linker could
// keep a copy compiled for one instruction set and use it for all.
//
// exp: Cody-Waite reduction by ln 2 and the Taylor polynomial of degree 7 on [-ln2/2, ln2/2], whose
// remainder is below 6e-9 relative; J.-M. Muller, Elementary Functions, section 11.

constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(float));
typedef float Vector __attribute__((vector_size(kVectorBytes)));
typedef float UnalignedVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef int32_t UnalignedIntVector
    __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

static inline Vector Load(const float* source) {
  return *reinterpret_cast<const UnalignedVector*>(source);
}

static inline IntVector Load(const int32_t* source) {
  return *reinterpret_cast<const UnalignedIntVector*>(source);
}

static inline void Store(float* destination, Vector value) {
  *reinterpret_cast<UnalignedVector*>(destination) = value;
}

static inline Vector Splat(float value) { return value - Vector{}; }
static inline IntVector Splat(int32_t value) { return value - IntVector{}; }

static inline Vector Select(IntVector mask, Vector yes, Vector no) { return mask ? yes : no; }

static inline Vector Exp(Vector x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr float kSmallest = -87.0f;      // below this the result is taken as 0
  constexpr int32_t kExponentBias = 127;
  constexpr int32_t kMantissaBits = 23;
  const Vector clamped = Select(x < Splat(kSmallest), Splat(kSmallest), x);
  const Vector whole = (clamped * kLog2E + kRounder) - kRounder;
  Vector r = clamped - whole * kLn2High;
  r = r - whole * kLn2Low;
  Vector p = Splat(1.0f / 5040.0f);
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const IntVector exponent = __builtin_convertvector(whole, IntVector) + kExponentBias;
  const Vector result = p * reinterpret_cast<Vector>(exponent << kMantissaBits);
  return Select(x < Splat(kSmallest), Splat(0.0f), result);
}

static inline IntVector IsMasked(const TileColumns& columns, int64_t column, IntVector row) {
  const IntVector lower = (row >= Load(columns.lower_begin + column)) &
                          (row < Load(columns.lower_end + column));
  const IntVector upper = (row >= Load(columns.upper_begin + column)) &
                          (row < Load(columns.upper_end + column));
  return lower | upper;
}

template <int kRows>
static inline void MultiplyBlock(const Product& product, const float* a, const float* b, float* c) {
  Vector sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = product.accumulate ? Load(c + r * product.c_stride) : Splat(0.0f);
    sums[r][1] = product.accumulate ? Load(c + r * product.c_stride + kLanes) : Splat(0.0f);
  }
  for (int64_t d = 0; d < product.depth; ++d) {
    const Vector b0 = Load(b);
    const Vector b1 = Load(b + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = Splat(a[r * product.a_row_stride]);
      sums[r][0] += factor * b0;
      sums[r][1] += factor * b1;
    }
    a += product.a_depth_stride;
    b += product.b_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    Store(c + r * product.c_stride, sums[r][0]);
    Store(c + r * product.c_stride + kLanes, sums[r][1]);
  }
}

static void Multiply(const Product& product) {
  for (int64_t n = 0; n < product.width; n += 2 * kLanes) {
    for (int64_t m = 0; m < product.rows; m += kProductRows) {
      MultiplyBlock<kProductRows>(product, product.a + m * product.a_row_stride, product.b + n,
                                  product.c + m * product.c_stride + n);
    }
  }
}

static inline float Largest(Vector values) {
  float largest = values[0];
  for (int64_t i = 1; i < kLanes; ++i) {
    // NaN wins and stays, as in a dense softmax.
    if (values[i] > largest || values[i] != values[i]) largest = values[i];
  }
  return largest;
}

static inline float Sum(Vector values) {
  float sum = 0.0f;
  for (int64_t i = 0; i < kLanes; ++i) sum += values[i];
  return sum;
}

static inline float RowMax(float* scores, float scale, const TileColumns* columns, IntVector row) {
  Vector largest = Splat(-INFINITY);
  for (int64_t c = 0; c < kTileColumns; c += kLanes) {
    Vector score = Load(scores + c) * scale;
    if (columns != nullptr) {
      score = Select(IsMasked(*columns, c, row), Splat(-INFINITY), score);
    }
    Store(scores + c, score);
    largest = Select((score > largest) | (score != score), score, largest);
  }
  return Largest(largest);
}

static void OnlineSoftmax(const SoftmaxState& state, int64_t rows, float scale,
                          const TileColumns* columns, int64_t row_begin) {
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = state.scores + r * kTileColumns;
    const IntVector row = Splat(static_cast<int32_t>(row_begin + r));
    const float tile_max = RowMax(scores, scale, columns, row);
    if (tile_max == -INFINITY) {
      for (int64_t c = 0; c < kTileColumns; c += kLanes) Store(scores + c, Splat(0.0f));
      continue;
    }
    const float old_max = state.row_max[r];
    const float new_max = tile_max > old_max || tile_max != tile_max ? tile_max : old_max;
    if (new_max != old_max) {
      const float rescale = Exp(Splat(old_max - new_max))[0];
      float* out = state.out + r * state.out_stride;
      for (int64_t d = 0; d < state.out_stride; d += kLanes) {
        Store(out + d, Load(out + d) * rescale);
      }
      state.row_sum[r] *= rescale;
      state.row_max[r] = new_max;
    }
    Vector sum = Splat(0.0f);
    for (int64_t c = 0; c < kTileColumns; c += kLanes) {
      const Vector weight = Exp(Load(scores + c) - new_max);
      Store(scores + c, weight);
      sum += weight;
    }
    state.row_sum[r] += Sum(sum);
  }
}

static void SoftmaxBackward(const BackwardTile& tile, int64_t rows, float scale,
                            const TileColumns* columns, int64_t row_begin) {
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = tile.scores + r * kTileColumns;
    float* grad_scores = tile.grad_scores + r * kTileColumns;
    const IntVector row = Splat(static_cast<int32_t>(row_begin + r));
    for (int64_t c = 0; c < kTileColumns; c += kLanes) {
      Vector weight = Exp(Load(scores + c) * scale - tile.softmax_lse[r]);
      Vector grad = weight * (Load(grad_scores + c) - tile.delta[r]) * scale;
      if (columns != nullptr) {
        const IntVector masked = IsMasked(*columns, c, row);
        weight = Select(masked, Splat(0.0f), weight);
        grad = Select(masked, Splat(0.0f), grad);
      }
      Store(scores + c, weight);
      Store(grad_scores + c, grad);
    }
  }
}

template <typename T>
static void LoadTyped(const T* source, int64_t row_stride, int64_t rows, int64_t head_dim,
                      int64_t rows_padded, float* tile, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) {
      tile[r * stride + d] = ToFloat(source[r * row_stride + d]);
    }
    for (int64_t d = head_dim; d < stride; ++d) tile[r * stride + d] = 0.0f;
  }
  for (int64_t i = rows * stride; i < rows_padded * stride; ++i) tile[i] = 0.0f;
}

template <typename T>
static void LoadTransposedTyped(const T* source, int64_t row_stride, int64_t rows,
                                int64_t head_dim, float* tile) {
  for (int64_t d = 0; d < head_dim; ++d) {
    for (int64_t r = 0; r < rows; ++r) {
      tile[d * kTileColumns + r] = ToFloat(source[r * row_stride + d]);
    }
    for (int64_t r = rows; r < kTileColumns; ++r) tile[d * kTileColumns + r] = 0.0f;
  }
}

template <typename T>
static void StoreTyped(const float* tile, int64_t stride, const float* row_scale, int64_t rows,
                       int64_t head_dim, T* destination, int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = row_scale == nullptr ? 1.0f : row_scale[r];
    for (int64_t d = 0; d < head_dim; ++d) {
      destination[r * row_stride + d] = FromFloat<T>(tile[r * stride + d] * scale);
    }
  }
}

static void LoadTile(DataType dtype, const void* source, int64_t row_stride, int64_t rows,
                     int64_t head_dim, int64_t rows_padded, float* tile, int64_t stride) {
  switch (dtype) {
    case DataType::kFloat32:
      return LoadTyped(static_cast<const float*>(source), row_stride, rows, head_dim, rows_padded,
                       tile, stride);
    case DataType::kFloat16:
      return LoadTyped(static_cast<const Float16*>(source), row_stride, rows, head_dim,
                       rows_padded, tile, stride);
    case DataType::kBFloat16:
      return LoadTyped(static_cast<const BFloat16*>(source), row_stride, rows, head_dim,
                       rows_padded, tile, stride);
  }
}

static void LoadTransposedTile(DataType dtype, const void* source, int64_t row_stride,
                               int64_t rows, int64_t head_dim, float* tile) {
  switch (dtype) {
    case DataType::kFloat32:
      return LoadTransposedTyped(static_cast<const float*>(source), row_stride, rows, head_dim,
                                 tile);
    case DataType::kFloat16:
      return LoadTransposedTyped(static_cast<const Float16*>(source), row_stride, rows, head_dim,
                                 tile);
    case DataType::kBFloat16:
      return LoadTransposedTyped(static_cast<const BFloat16*>(source), row_stride, rows, head_dim,
                                 tile);
  }
}

static void StoreTile(DataType dtype, const float* tile, int64_t stride, const float* row_scale,
                      int64_t rows, int64_t head_dim, void* destination, int64_t row_stride) {
  switch (dtype) {
    case DataType::kFloat32:
      return StoreTyped(tile, stride, row_scale, rows, head_dim, static_cast<float*>(destination),
                        row_stride);
    case DataType::kFloat16:
      return StoreTyped(tile, stride, row_scale, rows, head_dim,
                        static_cast<Float16*>(destination), row_stride);
    case DataType::kBFloat16:
      return StoreTyped(tile, stride, row_scale, rows, head_dim,
                        static_cast<BFloat16*>(destination), row_stride);
  }
}

static constexpr TileMath kTileMath = {Multiply, OnlineSoftmax,      SoftmaxBackward,
                                       LoadTile, LoadTransposedTile, StoreTile};
