// The arithmetic of a tile. Each tile_math_<isa>.cc includes this once, inside a namespace of its
// own and under its own target pragma, after defining kVectorBytes and kProductRows and including
// vector_math.h and float_units.h or bfloat16_units.h. Nothing here may call an inline function of
// the standard library: the linker could keep a copy compiled for one instruction set and use it
// for all.

static_assert(kColumnStep % (2 * kLanes) == 0, "softmax takes two vectors at a time");
static_assert(kTileColumns == 2 * kColumnStep, "a span is a whole tile or one step");
static_assert(kTileRows % 2 == 0, "the backward takes two rows at a time");

static inline IntVector IsMasked(const TileColumns& columns, int64_t column, IntVector row) {
  const IntVector lower =
      (row >= Load(columns.lower_begin + column)) & (row < Load(columns.lower_end + column));
  const IntVector upper =
      (row >= Load(columns.upper_begin + column)) & (row < Load(columns.upper_end + column));
  return lower | upper;
}

template <int kRows>
static inline void MultiplyBlock(const Product& product, const float* a, const float* b, float* c) {
  Vector sums[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = product.accumulate ? Load(c + r * product.c_stride) : Splat(0.0f);
    sums[r][1] = product.accumulate ? Load(c + r * product.c_stride + kLanes) : Splat(0.0f);
  }
  for (int64_t d = 0; d < product.depth_units; ++d) {
    const Vector b0 = Load(b);
    const Vector b1 = Load(b + kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = Broadcast(a + r * product.a_row_stride);
      sums[r][0] = MultiplyAdd(sums[r][0], factor, b0);
      sums[r][1] = MultiplyAdd(sums[r][1], factor, b1);
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
      MultiplyBlock<kProductRows>(product,
                                  product.a + m * product.a_row_stride,
                                  product.b + n,
                                  product.c + m * product.c_stride + n);
    }
  }
}

template <bool kMasked, int64_t kSize>
static inline float ScaleAndMask(float* scores,
                                 float scale,
                                 const TileColumns* columns,
                                 int64_t first,
                                 IntVector row) {
  Vector largest = Splat(-INFINITY);
  for (int64_t c = first; c < first + kSize; c += kLanes) {
    Vector score = Load(scores + c) * scale;
    if (kMasked) score = Select(IsMasked(*columns, c, row), Splat(-INFINITY), score);
    Store(scores + c, score);
    largest = LargerOf::Combine(score, largest);
  }
  return Fold<LargerOf>(largest);
}

static inline bool SeesAny(const TileColumns& columns, ColumnSpan span, IntVector row) {
  for (int64_t c = span.begin; c < span.end; c += kLanes) {
    const IntVector masked = IsMasked(columns, c, row);
    for (int64_t i = 0; i < kLanes; ++i) {
      if (masked[i] == 0) return true;
    }
  }
  return false;
}

// Takes a row's maximum up to `tile_max` and what was summed under the old one with it.
static inline void RaiseRowMax(const OnlineSoftmax& state, int64_t r, float tile_max) {
  const float old_max = state.row_max[r];
  if (!(tile_max > old_max || tile_max != tile_max)) return;
  const float rescale = Exp(Splat(old_max - tile_max))[0];
  float* out = state.out + r * state.out_stride;
  for (int64_t d = 0; d < state.out_stride; d += kLanes) Store(out + d, Load(out + d) * rescale);
  state.row_sum[r] *= rescale;
  state.row_max[r] = tile_max;
}

// Works on kSize columns from state.span.begin.
template <bool kMasked, int64_t kSize>
static inline void UpdateSoftmax(const OnlineSoftmax& state,
                                 int64_t rows,
                                 float scale,
                                 const TileColumns* columns,
                                 int64_t row_begin) {
  const int64_t first = kSize == kTileColumns ? 0 : state.span.begin;
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = state.scores + r * kTileColumns;
    float* weights = state.weights + r * (kTileColumns / kDepthPerUnit);
    const IntVector row = Splat(static_cast<int32_t>(row_begin + r));
    const float tile_max = ScaleAndMask<kMasked, kSize>(scores, scale, columns, first, row);
    if (tile_max == -INFINITY) {
      if (!kMasked || SeesAny(*columns, state.span, row)) state.row_seen[r] = 1.0f;
      for (int64_t c = first; c < first + kSize; c += 2 * kLanes) {
        StoreRowUnits(weights, c, Splat(0.0f), Splat(0.0f));
      }
      continue;
    }
    RaiseRowMax(state, r, tile_max);
    Vector sum = Splat(0.0f);
    for (int64_t c = first; c < first + kSize; c += 2 * kLanes) {
      const Vector low = Exp(Load(scores + c) - state.row_max[r]);
      const Vector high = Exp(Load(scores + c + kLanes) - state.row_max[r]);
      StoreRowUnits(weights, c, low, high);
      sum += low + high;
    }
    state.row_sum[r] += Fold<SumOf>(sum);
  }
}

static void UpdateOnlineSoftmax(const OnlineSoftmax& state,
                                int64_t rows,
                                float scale,
                                const TileColumns* columns,
                                int64_t row_begin) {
  if (columns == nullptr) {
    UpdateSoftmax<false, kTileColumns>(state, rows, scale, columns, row_begin);
  } else if (state.span.size() == kTileColumns) {
    UpdateSoftmax<true, kTileColumns>(state, rows, scale, columns, row_begin);
  } else {
    UpdateSoftmax<true, kColumnStep>(state, rows, scale, columns, row_begin);
  }
}

struct WeightAndGrad {
  Vector weight;
  Vector grad;
};

template <bool kMasked>
static inline WeightAndGrad BackwardCells(const SoftmaxBackward& tile,
                                          int64_t r,
                                          int64_t c,
                                          float scale,
                                          const TileColumns* columns,
                                          int64_t row_begin) {
  const int64_t cell = r * kTileColumns + c;
  WeightAndGrad cells;
  // At most 0 but for the rounding of lse, which grows with the scores; NaN stays.
  const Vector exponent = Load(tile.scores + cell) * scale - tile.softmax_lse[r];
  cells.weight = Exp(Select(exponent > Splat(0.0f), Splat(0.0f), exponent));
  cells.grad = cells.weight * (Load(tile.grad_weights + cell) - tile.delta[r]) * scale;
  if (kMasked) {
    const IntVector row = Splat(static_cast<int32_t>(row_begin + r));
    const IntVector masked = IsMasked(*columns, c, row);
    cells.weight = Select(masked, Splat(0.0f), cells.weight);
    cells.grad = Select(masked, Splat(0.0f), cells.grad);
  }
  return cells;
}

// Two rows by two vectors at a time, since a unit may pair either neighbour.
// Works on kSize columns from tile.span.begin.
template <bool kMasked, int64_t kSize>
static inline void GradientOfSoftmax(const SoftmaxBackward& tile,
                                     int64_t rows,
                                     float scale,
                                     const TileColumns* columns,
                                     int64_t row_begin) {
  const WeightAndGrad nothing{Splat(0.0f), Splat(0.0f)};
  constexpr int64_t kRowUnits = kTileColumns / kDepthPerUnit;
  const int64_t first = kSize == kTileColumns ? 0 : tile.span.begin;
  for (int64_t r = 0; r < rows; r += 2) {
    for (int64_t c = first; c < first + kSize; c += 2 * kLanes) {
      WeightAndGrad cells[2][2] = {{nothing, nothing}, {nothing, nothing}};
      for (int64_t i = 0; i < 2 && r + i < rows; ++i) {
        for (int64_t j = 0; j < 2; ++j) {
          cells[i][j] =
              BackwardCells<kMasked>(tile, r + i, c + j * kLanes, scale, columns, row_begin);
        }
        StoreRowUnits(tile.grad_scores + (r + i) * kRowUnits,
                      c,
                      cells[i][0].grad,
                      cells[i][1].grad);
      }
      for (int64_t j = 0; j < 2; ++j) {
        const int64_t column = c + j * kLanes;
        StoreRowPair(tile.weights_transposed, r, column, cells[0][j].weight, cells[1][j].weight);
        StoreRowPair(tile.grad_scores_transposed, r, column, cells[0][j].grad, cells[1][j].grad);
      }
    }
  }
}

static void ComputeSoftmaxBackward(const SoftmaxBackward& tile,
                                   int64_t rows,
                                   float scale,
                                   const TileColumns* columns,
                                   int64_t row_begin) {
  if (columns == nullptr) {
    GradientOfSoftmax<false, kTileColumns>(tile, rows, scale, columns, row_begin);
  } else if (tile.span.size() == kTileColumns) {
    GradientOfSoftmax<true, kTileColumns>(tile, rows, scale, columns, row_begin);
  } else {
    GradientOfSoftmax<true, kColumnStep>(tile, rows, scale, columns, row_begin);
  }
}

static inline void ZeroUnits(float* units, int64_t count) {
  for (int64_t i = 0; i < count; ++i) units[i] = 0.0f;
}

template <typename T>
static void LoadRowsTyped(const TileLoad& load) {
  const T* source = static_cast<const T*>(load.source);
  const int64_t units = load.head_dim / kDepthPerUnit;
  for (int64_t r = 0; r < load.rows; ++r) {
    float* row = load.tile + r * load.stride;
    for (int64_t u = 0; u < units; ++u) {
      row[u] = MakeUnit(source + r * load.source_row_stride + u * kDepthPerUnit, 1);
    }
    ZeroUnits(row + units, load.stride - units);
  }
  ZeroUnits(load.tile + load.rows * load.stride, (kTileRows - load.rows) * load.stride);
}

template <typename T>
static void LoadColumnsTyped(const TileLoad& load) {
  const T* source = static_cast<const T*>(load.source);
  const int64_t units = load.head_dim / kDepthPerUnit;
  for (int64_t r = 0; r < load.rows; ++r) {
    for (int64_t u = 0; u < units; ++u) {
      load.tile[u * load.stride + r] =
          MakeUnit(source + r * load.source_row_stride + u * kDepthPerUnit, 1);
    }
  }
  for (int64_t u = 0; u < units; ++u) {
    ZeroUnits(load.tile + u * load.stride + load.rows, kTileColumns - load.rows);
  }
}

template <typename T>
static void LoadDepthRowsTyped(const TileLoad& load) {
  const T* source = static_cast<const T*>(load.source);
  const int64_t whole_units = load.rows / kDepthPerUnit;
  for (int64_t u = 0; u < whole_units; ++u) {
    const T* row = source + u * kDepthPerUnit * load.source_row_stride;
    float* units = load.tile + u * load.stride;
    for (int64_t d = 0; d < load.head_dim; ++d) {
      units[d] = MakeUnit(row + d, load.source_row_stride);
    }
    ZeroUnits(units + load.head_dim, load.stride - load.head_dim);
  }
  float* rest = load.tile + whole_units * load.stride;
  ZeroUnits(rest, (kTileRows / kDepthPerUnit - whole_units) * load.stride);
  if (whole_units * kDepthPerUnit < load.rows) {
    const T* last = source + (load.rows - 1) * load.source_row_stride;
    for (int64_t d = 0; d < load.head_dim; ++d) {
      const T pair[2] = {last[d], FromFloat<T>(0.0f)};
      rest[d] = MakeUnit(pair, 1);
    }
  }
}

template <typename T>
static void StoreTyped(const float* tile,
                       int64_t stride,
                       const float* row_scale,
                       int64_t rows,
                       int64_t head_dim,
                       T* destination,
                       int64_t row_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = row_scale == nullptr ? 1.0f : row_scale[r];
    for (int64_t d = 0; d < head_dim; ++d) {
      destination[r * row_stride + d] = FromFloat<T>(tile[r * stride + d] * scale);
    }
  }
}
