#include "gpu/handles.hpp"

#include <fmt/format.h>

namespace vmem::gpu {

Result<PrimaryContext> PrimaryContext::retain(DriverRef driver, CUdevice device) {
  CUcontext context = nullptr;
  VMEM_TRY(driver->check((*driver)->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
  return PrimaryContext(std::move(driver), RetainedContext{context, device});
}
void PrimaryContext::give_back(const Driver& driver, RetainedContext handle) noexcept {
  driver->cuDevicePrimaryCtxRelease(handle.device);
}

Result<ScopedContext> ScopedContext::push(DriverRef driver, CUcontext context) {
  VMEM_TRY(driver->check((*driver)->cuCtxPushCurrent(context), "cuCtxPushCurrent"));
  return ScopedContext(std::move(driver));
}
ScopedContext::~ScopedContext() {
  CUcontext popped = nullptr;
  if (driver_) (*driver_)->cuCtxPopCurrent(&popped);
}

Result<Stream> Stream::create(DriverRef driver) {
  CUstream stream = nullptr;
  VMEM_TRY(driver->check((*driver)->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  return Stream(std::move(driver), stream);
}
Result<Stream> Stream::create_urgent(DriverRef driver) {
  constexpr int kMostUrgent = -1000;  // the driver clamps it to its highest priority
  CUstream stream = nullptr;
  VMEM_TRY(driver->check((*driver)->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, kMostUrgent),
                         "cuStreamCreateWithPriority"));
  return Stream(std::move(driver), stream);
}
Status Stream::synchronize() const {
  return driver()->check((*driver())->cuStreamSynchronize(get()), "cuStreamSynchronize");
}
void Stream::give_back(const Driver& driver, CUstream handle) noexcept { driver->cuStreamDestroy(handle); }

Result<Event> Event::create(DriverRef driver, Timing timing) {
  CUevent event = nullptr;
  const unsigned flags = timing == Timing::on ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  VMEM_TRY(driver->check((*driver)->cuEventCreate(&event, flags), "cuEventCreate"));
  return Event(std::move(driver), event);
}
Status Event::record(CUstream stream) const {
  return driver()->check((*driver())->cuEventRecord(get(), stream), "cuEventRecord");
}
Result<bool> Event::complete() const {
  const CUresult result = (*driver())->cuEventQuery(get());
  if (result == CUDA_ERROR_NOT_READY) return false;
  VMEM_TRY(driver()->check(result, "cuEventQuery"));
  return true;
}
Status Event::synchronize() const {
  return driver()->check((*driver())->cuEventSynchronize(get()), "cuEventSynchronize");
}
void Event::give_back(const Driver& driver, CUevent handle) noexcept { driver->cuEventDestroy(handle); }

Result<VmmHandle> VmmHandle::create(DriverRef driver, std::size_t bytes, const CUmemAllocationProp& properties) {
  CUmemGenericAllocationHandle handle = 0;
  VMEM_TRY(driver->check((*driver)->cuMemCreate(&handle, bytes, &properties, 0), "cuMemCreate"));
  return VmmHandle(std::move(driver), handle);
}
Result<VmmHandle> VmmHandle::import_fd(DriverRef driver, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  void* const os_handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  VMEM_TRY(driver->check(
      (*driver)->cuMemImportFromShareableHandle(&handle, os_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle"));
  return VmmHandle(std::move(driver), handle);
}
Result<int> VmmHandle::export_fd() const {
  int fd = -1;
  VMEM_TRY(driver()->check(
      (*driver())->cuMemExportToShareableHandle(&fd, get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      "cuMemExportToShareableHandle"));
  return fd;
}
void VmmHandle::give_back(const Driver& driver, CUmemGenericAllocationHandle handle) noexcept {
  driver->cuMemRelease(handle);
}

namespace {

CUmemAllocationProp memory_at(CUmemLocationType type, int id, bool exportable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = type;
  properties.location.id = id;
  if (exportable) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

}  // namespace

CUmemAllocationProp device_memory(int device, bool exportable) {
  return memory_at(CU_MEM_LOCATION_TYPE_DEVICE, device, exportable);
}
CUmemAllocationProp host_memory(int numa_node, bool exportable) {
  return memory_at(CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node, exportable);
}

Result<Reservation> Reservation::create(DriverRef driver, std::size_t bytes, std::size_t alignment, CUdeviceptr hint) {
  CUdeviceptr begin = 0;
  VMEM_TRY(driver->check((*driver)->cuMemAddressReserve(&begin, bytes, alignment, hint, 0), "cuMemAddressReserve"));
  return Reservation(std::move(driver), AddressRange{begin, bytes});
}
void Reservation::give_back(const Driver& driver, AddressRange handle) noexcept {
  driver->cuMemAddressFree(handle.begin, handle.bytes);
}

Result<PinnedBuffer> PinnedBuffer::create(DriverRef driver, std::size_t bytes) {
  void* data = nullptr;
  VMEM_TRY(driver->check((*driver)->cuMemHostAlloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc"));
  return PinnedBuffer(std::move(driver), HostRange{data, bytes});
}
void PinnedBuffer::give_back(const Driver& driver, HostRange handle) noexcept { driver->cuMemFreeHost(handle.data); }

Result<DeviceMemory> DeviceMemory::create(DriverRef driver, std::size_t bytes) {
  CUdeviceptr address = 0;
  VMEM_TRY(driver->check((*driver)->cuMemAlloc(&address, bytes), "cuMemAlloc"));
  return DeviceMemory(std::move(driver), address);
}
void DeviceMemory::give_back(const Driver& driver, CUdeviceptr handle) noexcept { driver->cuMemFree(handle); }

Result<Module> Module::load(DriverRef driver, const void* image) {
  CUmodule module = nullptr;
  VMEM_TRY(driver->check((*driver)->cuModuleLoadData(&module, image), "cuModuleLoadData"));
  return Module(std::move(driver), module);
}
Result<CUfunction> Module::function(const char* name) const {
  CUfunction function = nullptr;
  const CUresult result = (*driver())->cuModuleGetFunction(&function, get(), name);
  if (result != CUDA_SUCCESS) {
    auto failed = driver()->check(result, "cuModuleGetFunction");
    failed.error().message += fmt::format("; kernel '{}'", name);
    return std::unexpected(std::move(failed).error());
  }
  return function;
}
void Module::give_back(const Driver& driver, CUmodule handle) noexcept { driver->cuModuleUnload(handle); }

}  // namespace vmem::gpu
