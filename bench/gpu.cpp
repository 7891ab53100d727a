#include "bench/gpu.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "base/sizes.hpp"
#include "vmem/vmem.h"

namespace vmem::bench {
namespace {

// Default emulated machine unless VMEM_EMU is set. Its links are slow enough for two cores to keep
// up, so that copies, kernels and the runtime overlap as on a GPU.
constexpr const char* kEmulatedMachine = "h2d=2,d2h=2,duplex=4,copy_us=10";

Result<std::shared_ptr<const gpu::Driver>> load_driver(const std::string& which) {
  setenv("VMEM_EMU", kEmulatedMachine, 0);
  auto driver = gpu::Driver::load(which);
  if (driver || which != "auto") return driver;
  auto emulated = gpu::Driver::load("emulated");
  if (!emulated) return driver;
  // Warn only if a driver is installed but unusable.
  if (gpu::Driver::installed())
    fmt::print(stderr, "vmem bench: {}; the emulated driver is used instead\n", driver.error().message);
  return emulated;
}

}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::open(const std::string& which, int ordinal) {
  VMEM_ASSIGN(auto driver, load_driver(which));
  std::unique_ptr<Gpu> gpu(new Gpu(std::move(driver), ordinal));
  VMEM_TRY(gpu->retain());
  return gpu;
}

Status Gpu::retain() {
  int count = 0;
  BENCH_CALL(*this, cuDeviceGetCount, &count);
  if (ordinal_ < 0 || ordinal_ >= count)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--device asks for device {}, but the driver has {} (numbered from 0)", ordinal_, count));
  CUdevice device = 0;
  BENCH_CALL(*this, cuDeviceGet, &device, ordinal_);
  VMEM_ASSIGN(context_, gpu::PrimaryContext::retain(driver_, device));
  VMEM_TRY(make_current());
  char name[256] = "";
  BENCH_CALL(*this, cuDeviceGetName, name, static_cast<int>(sizeof(name)), device);
  name_ = name;
  std::size_t free = 0;
  std::size_t total = 0;
  BENCH_CALL(*this, cuMemGetInfo, &free, &total);
  free_bytes_ = free;
  total_bytes_ = total;
  int multiprocessors = 0;
  BENCH_CALL(*this, cuDeviceGetAttribute, &multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  multiprocessors_ = multiprocessors > 0 ? static_cast<unsigned>(multiprocessors) : 1;
  return {};
}

Status Gpu::make_current() const { return check(table().cuCtxSetCurrent(context_.context()), "cuCtxSetCurrent"); }

Stream::~Stream() {
  // Ignored if the runtime has not seen the stream, or has ended.
  if (stream_) vmem_stream_close(stream_.get());
}

Result<Stream> make_stream(const Gpu& gpu) {
  VMEM_ASSIGN(auto stream, gpu::Stream::create(gpu.driver_ref()));
  return Stream(std::move(stream));
}

Result<DeviceMemory> allocate_device(const Gpu& gpu, std::uint64_t bytes) {
  auto memory = DeviceMemory::create(gpu.driver_ref(), bytes);
  if (!memory)
    memory.error().message +=
        fmt::format("; {} of device memory were asked for to measure the limit", format_bytes(bytes));
  return memory;
}

Result<gpu::PinnedBuffer> allocate_pinned(const Gpu& gpu, std::uint64_t bytes) {
  auto buffer = gpu::PinnedBuffer::create(gpu.driver_ref(), bytes);
  if (!buffer)
    buffer.error().message +=
        fmt::format("; {} of pinned memory were asked for to measure the limit", format_bytes(bytes));
  return buffer;
}

}  // namespace vmem::bench
