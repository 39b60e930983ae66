#pragma once

#include "core/status.h"

#include <cuda_runtime.h>

#include <string>

namespace flashmask {

// Also takes the failure out of the runtime, so that the next call does not find it as its own.
inline Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  cudaGetLastError();
  return Status::Unsupported(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace flashmask

// Returns from a function of type Status if a call of the CUDA runtime fails.
#define FLASHMASK_RETURN_IF_CUDA_FAILS(call)                                      \
  do {                                                                            \
    const ::flashmask::Status cuda_status = ::flashmask::CudaStatus(call, #call); \
    if (!cuda_status.ok()) return cuda_status;                                    \
  } while (false)
