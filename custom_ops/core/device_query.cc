#include "core/device_query.h"

namespace flashmask {
namespace {

DeviceQuery& Registered() {
  static DeviceQuery query = nullptr;
  return query;
}

}  // namespace

DeviceQueryRegistration::DeviceQueryRegistration(DeviceQuery query) { Registered() = query; }

Status ComputeCapability(int32_t device, int32_t* compute_capability) {
  if (Registered() == nullptr) {
    return Status::Unsupported(
        "the tensors are on a CUDA device, but this library was built without CUDA kernels");
  }
  return Registered()(device, compute_capability);
}

}  // namespace flashmask
