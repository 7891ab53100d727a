#include "runtime/assembly/devices.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"
#include "runtime/assembly/machine.hpp"

namespace vmem::runtime {

Device::~Device() {
  if (io != nullptr) (void)(*driver)->cuStreamDestroy(io);
  if (context != nullptr) (void)(*driver)->cuDevicePrimaryCtxRelease(handle);
}

Status Device::open(int driver_ordinal) {
  const auto& cuda = *driver;
  ordinal = driver_ordinal;
  VMEM_TRY(cuda.check(cuda->cuDeviceGet(&handle, ordinal), "cuDeviceGet"));
  int managed = 0;
  VMEM_TRY(
      cuda.check(cuda->cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle),
                 "cuDeviceGetAttribute"));
  if (managed == 0) {
    return fail(
        VMEM_ERROR_UNSUPPORTED,
        fmt::format("device {} has no virtual memory management (cuMemMap); vmem needs a GPU and driver that do",
                    ordinal));
  }
  VMEM_TRY(cuda.check(cuda->cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain"));
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver, context));
  return cuda.check(cuda->cuStreamCreate(&io, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

Result<std::unique_ptr<Devices>> Devices::open(const std::shared_ptr<const gpu::Driver>& driver,
                                               const std::vector<int>& wanted) {
  int present = 0;
  VMEM_TRY(driver->check((*driver)->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  if (present == 0) return fail(VMEM_ERROR_NO_DRIVER, "the CUDA driver sees no GPU; see `vmem doctor`");
  std::vector<int> ordinals = wanted;
  for (int i = 0; i < present && wanted.empty(); ++i) ordinals.push_back(i);
  if (wanted.size() > kMostDevices) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--devices names {} devices; vmem uses at most {}, name fewer",
                                                       wanted.size(), kMostDevices));
  }
  if (ordinals.size() > kMostDevices) {
    VMEM_LOG_WARN("the driver sees {} GPUs; vmem uses the first {} (choose with --devices)", present, kMostDevices);
    ordinals.resize(kMostDevices);
  }
  auto devices = std::make_unique<Devices>();
  for (const int ordinal : ordinals) {
    if (ordinal >= present) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("--devices names device {}, and there are {} (0 to {})", ordinal, present, present - 1));
    }
    VMEM_TRY(devices->devices_.emplace_back(std::make_unique<Device>(driver))->open(ordinal));
  }
  return devices;
}

const Device* Devices::find(int ordinal) const {
  const auto found = std::ranges::find(devices_, ordinal, [](const auto& device) { return device->ordinal; });
  return found == devices_.end() ? nullptr : found->get();
}

Result<int> Devices::index_of(int ordinal) const {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->ordinal == ordinal) return int(i);
  }
  std::string known;
  for (const auto& device : devices_) known += fmt::format("{}{}", known.empty() ? "" : ", ", device->ordinal);
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("device {} is not in use by vmem; in use: {}", ordinal, known));
}

CUcontext Devices::context_of(int ordinal) const {
  const Device* const device = find(ordinal);
  return device == nullptr ? nullptr : device->context;
}

Status Devices::synchronize(int ordinal) const {
  const Device* const device = find(ordinal);
  if (device == nullptr) return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("device {} is not in use", ordinal));
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(device->driver, device->context));
  return device->driver->check((*device->driver)->cuCtxSynchronize(), "cuCtxSynchronize");
}

Result<DeviceMemory> free_memory(const Device& device) {
  const auto& driver = *device.driver;
  std::size_t free_bytes = 0, total_bytes = 0;
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(device.driver, device.context));
  VMEM_TRY(driver.check(driver->cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo"));
  return DeviceMemory{free_bytes, total_bytes};
}

Result<std::uint64_t> hbm_budget(const Options& options, const Device& device) {
  VMEM_ASSIGN(const DeviceMemory memory, free_memory(device));
  const auto [free_bytes, total_bytes] = memory;
  const std::uint64_t headroom =
      options.hbm_bytes ? 0 : std::min<std::uint64_t>(options.headroom_bytes, free_bytes / 4);
  const std::uint64_t budget = whole_granules(options.hbm_bytes.value_or(free_bytes - headroom));
  if (budget > free_bytes) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--hbm {} asked for, device {} has {} free of {}; lower --hbm or free GPU memory",
                            format_bytes(budget), device.ordinal, format_bytes(free_bytes), format_bytes(total_bytes)));
  }
  if (budget < kSmallestHbm) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("an HBM budget of {} on device {} is too small; {} is the least", format_bytes(budget),
                            device.ordinal, format_bytes(kSmallestHbm)));
  }
  if (options.page_bytes && *options.page_bytes > budget / kPagesInHbm) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--page {} is more than an eighth of the HBM budget of {}",
                                                       format_bytes(*options.page_bytes), format_bytes(budget)));
  }
  return budget;
}

Status copy_window(Device& device, CUdeviceptr window, void* host, std::uint64_t bytes, WindowCopy way) {
  const auto& driver = *device.driver;
  const bool write = way == WindowCopy::to_window;
  const std::lock_guard lock(device.io_mutex);
  // The driver checks access to the frame with the current context's device, whatever the stream.
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(device.driver, device.context));
  const CUresult queued = write ? driver->cuMemcpyHtoDAsync(window, host, bytes, device.io)
                                : driver->cuMemcpyDtoHAsync(host, window, bytes, device.io);
  VMEM_TRY(driver.check(queued, write ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync"));
  return driver.check(driver->cuStreamSynchronize(device.io), "cuStreamSynchronize");
}

}  // namespace vmem::runtime
