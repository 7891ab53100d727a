// The GPU without the runtime: the bare driver, used to measure limits and launch kernels.
// Everything here belongs to the thread that opened it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "gpu/handles.hpp"

namespace vmem::bench {

class Gpu {
 public:
  // `driver` as for Driver::load; with "auto" and no CUDA driver, the emulated one. Retains the
  // device's primary context and makes it current. Errors: NO_DRIVER, INVALID_OPTION (no such
  // device), DRIVER.
  static Result<std::unique_ptr<Gpu>> open(const std::string& driver, int ordinal);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const gpu::DriverRef& driver_ref() const { return driver_; }
  const gpu::Driver& driver() const { return *driver_; }
  const gpu::DriverTable& table() const { return driver_->table(); }
  bool emulated() const { return driver_->emulated(); }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  std::uint64_t total_bytes() const { return total_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }  // at open
  unsigned multiprocessors() const { return multiprocessors_; }

  Status make_current() const;  // for the calling thread
  Status check(CUresult result, const char* call) const { return driver_->check(result, call); }

 private:
  Gpu(gpu::DriverRef driver, int ordinal) : driver_(std::move(driver)), ordinal_(ordinal) {}
  Status retain();

  const gpu::DriverRef driver_;
  const int ordinal_;
  gpu::PrimaryContext context_;
  std::string name_;
  std::uint64_t total_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  unsigned multiprocessors_ = 1;
};

// VMEM_TRY for a driver call: BENCH_CALL(gpu, cuMemAlloc, &address, bytes);
#define BENCH_CALL(gpu, name, ...) VMEM_TRY((gpu).check((gpu).table().name(__VA_ARGS__), #name))

// A non-blocking stream that may be used with the runtime; its destructor closes it there too.
class Stream {
 public:
  Stream() = default;
  explicit Stream(gpu::Stream stream) : stream_(std::move(stream)) {}
  Stream(Stream&&) = default;
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();
  CUstream get() const { return stream_.get(); }
  Status synchronize() const { return stream_.synchronize(); }

 private:
  gpu::Stream stream_;
};

using gpu::DeviceMemory;

Result<Stream> make_stream(const Gpu& gpu);
Result<DeviceMemory> allocate_device(const Gpu& gpu, std::uint64_t bytes);
Result<gpu::PinnedBuffer> allocate_pinned(const Gpu& gpu, std::uint64_t bytes);

}  // namespace vmem::bench
