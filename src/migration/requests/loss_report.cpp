// Whether a context of vmem is lost.
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

std::optional<Status> LossReport::advance(MoverParts& parts) {
  const auto& driver = *parts.core.config.driver;
  for (const Device& device : parts.devices.all()) {
    std::size_t free = 0, total = 0;
    CUresult result = driver->cuCtxPushCurrent(device.config.context);
    if (result == CUDA_SUCCESS) {
      result = driver->cuMemGetInfo(&free, &total);
      CUcontext popped = nullptr;
      (void)driver->cuCtxPopCurrent(&popped);
    }
    if (result != CUDA_SUCCESS) return std::unexpected(error);
  }
  return Status{};
}

}  // namespace vmem::migration
