// Loads and stores of every dtype, for units of one float. Included after tile_math_impl.h.

static void LoadRows(const TileLoad& load) {
  switch (load.dtype) {
    case DataType::kFloat32:
      return LoadRowsTyped<float>(load);
    case DataType::kFloat16:
      return LoadRowsTyped<Float16>(load);
    case DataType::kBFloat16:
      return LoadRowsTyped<BFloat16>(load);
  }
}

static void LoadColumns(const TileLoad& load) {
  switch (load.dtype) {
    case DataType::kFloat32:
      return LoadColumnsTyped<float>(load);
    case DataType::kFloat16:
      return LoadColumnsTyped<Float16>(load);
    case DataType::kBFloat16:
      return LoadColumnsTyped<BFloat16>(load);
  }
}

static void StoreTile(DataType dtype,
                      const float* tile,
                      int64_t stride,
                      const float* row_scale,
                      int64_t rows,
                      int64_t head_dim,
                      void* destination,
                      int64_t row_stride) {
  switch (dtype) {
    case DataType::kFloat32:
      return StoreTyped(tile,
                        stride,
                        row_scale,
                        rows,
                        head_dim,
                        static_cast<float*>(destination),
                        row_stride);
    case DataType::kFloat16:
      return StoreTyped(tile,
                        stride,
                        row_scale,
                        rows,
                        head_dim,
                        static_cast<Float16*>(destination),
                        row_stride);
    case DataType::kBFloat16:
      return StoreTyped(tile,
                        stride,
                        row_scale,
                        rows,
                        head_dim,
                        static_cast<BFloat16*>(destination),
                        row_stride);
  }
}

// A float is its own unit: rows of depth and float rows are plain rows.
static constexpr TileMath kTileMath = {kDepthPerUnit,
                                       Multiply,
                                       UpdateOnlineSoftmax,
                                       ComputeSoftmaxBackward,
                                       LoadRows,
                                       LoadColumns,
                                       LoadRows,
                                       LoadRows,
                                       StoreTile};
