// Loads and stores of bfloat16, for units of two. Included after tile_math_impl.h.

static void StoreBFloat16(DataType,
                          const float* tile,
                          int64_t stride,
                          const float* row_scale,
                          int64_t rows,
                          int64_t head_dim,
                          void* destination,
                          int64_t row_stride) {
  StoreTyped(tile,
             stride,
             row_scale,
             rows,
             head_dim,
             static_cast<BFloat16*>(destination),
             row_stride);
}

static void LoadFloatRows(const TileLoad& load) {
  const BFloat16* source = static_cast<const BFloat16*>(load.source);
  for (int64_t r = 0; r < load.rows; ++r) {
    float* row = load.tile + r * load.stride;
    for (int64_t d = 0; d < load.head_dim; ++d) {
      row[d] = ToFloat(source[r * load.source_row_stride + d]);
    }
    ZeroUnits(row + load.head_dim, load.stride - load.head_dim);
  }
  ZeroUnits(load.tile + load.rows * load.stride, (kTileRows - load.rows) * load.stride);
}

static constexpr TileMath kTileMath = {kDepthPerUnit,
                                       Multiply,
                                       UpdateOnlineSoftmax,
                                       ComputeSoftmaxBackward,
                                       LoadRowsTyped<BFloat16>,
                                       LoadColumnsTyped<BFloat16>,
                                       LoadDepthRowsTyped<BFloat16>,
                                       LoadFloatRows,
                                       StoreBFloat16};
