#ifdef FLASHMASK_SM90A

#include "kernels/common/cuda_check.h"
#include "kernels/sm90a/tensor_map.h"

#include <cuda_runtime.h>

#include <string>

namespace flashmask::sm90a {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

constexpr int kAxes = 4;
#if CUDART_VERSION >= 12050
constexpr unsigned kDriverVersion = 12000;  // of the entry point that is asked for
#endif
constexpr int64_t kElementBytes = 2;
constexpr int64_t kAlignment = 16;  // bytes, of the address and of all strides

// The driver's function, without linking to the driver.
Status FindEncode(Encode* encode) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  FLASHMASK_RETURN_IF_CUDA_FAILS(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
                                                                  &entry,
                                                                  kDriverVersion,
                                                                  cudaEnableDefault,
                                                                  &result));
#else  // which has no name for a version, and takes its own
  FLASHMASK_RETURN_IF_CUDA_FAILS(
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &result));
#endif
  if (entry == nullptr || result != cudaDriverEntryPointSuccess) {
    return Status::Unsupported("the driver has no cuTensorMapEncodeTiled; it must be of CUDA 12");
  }
  *encode = reinterpret_cast<Encode>(entry);
  return Status::Ok();
}

Status Misaligned(const char* name) {
  return Status::InvalidArgument(std::string(name) +
                                 " must start at a multiple of 16 bytes and have strides that are "
                                 "multiples of 8 elements");
}

}  // namespace

Status MakeTensorMap(const TensorView& view,
                     const char* name,
                     DataType dtype,
                     int64_t batch,
                     int64_t rows,
                     int64_t heads,
                     int64_t head_dim,
                     int box_rows,
                     CUtensorMap* map) {
  static Encode encode = nullptr;  // the same for all threads, so a race writes it twice
  if (encode == nullptr) {
    const Status found = FindEncode(&encode);
    if (!found.ok()) return found;
  }
  const cuuint64_t sizes[kAxes] = {static_cast<cuuint64_t>(head_dim),
                                   static_cast<cuuint64_t>(heads),
                                   static_cast<cuuint64_t>(rows),
                                   static_cast<cuuint64_t>(batch)};
  const int64_t counts[kAxes - 1] = {heads, rows, batch};
  const int64_t strides[kAxes - 1] = {view.head_stride, view.row_stride, view.batch_stride};
  cuuint64_t bytes[kAxes - 1];
  for (int axis = 0; axis < kAxes - 1; ++axis) {
    // An axis of one element may have any stride, and no other axis may have none.
    const int64_t stride = counts[axis] == 1 ? head_dim : strides[axis];
    bytes[axis] = static_cast<cuuint64_t>(stride * kElementBytes);
    if (stride < 0 || stride * kElementBytes % kAlignment != 0) return Misaligned(name);
  }
  if (reinterpret_cast<uintptr_t>(view.data) % kAlignment != 0) return Misaligned(name);
  const cuuint32_t box[kAxes] = {kSwizzleColumns, 1, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[kAxes] = {1, 1, 1, 1};
  const CUresult result = encode(map,
                                 dtype == DataType::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                 kAxes,
                                 view.data,
                                 sizes,
                                 bytes,
                                 box,
                                 steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::Ok();
  return Status::Unsupported("the driver cannot describe " + std::string(name) +
                             " to the copy engine (CUresult " + std::to_string(result) + ")");
}

}  // namespace flashmask::sm90a

#endif  // FLASHMASK_SM90A
