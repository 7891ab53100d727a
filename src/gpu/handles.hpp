// One type per driver handle. Each is move-only, owns its handle, keeps the driver alive, and
// releases the handle on destruction. A release that fails (context reset, kernel fault) is
// ignored: nothing is left to free. A moved-from or default-constructed object owns nothing.
//
// Threads: these types do not lock. Creation and use follow the driver's rules. Creating a Stream,
// Event, PinnedBuffer or Module needs a current context (ScopedContext). Their destructors make no
// context current.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "gpu/driver.hpp"

namespace vmem::gpu {

using DriverRef = std::shared_ptr<const Driver>;

// Base of all owners. Derived::give_back releases the handle.
template <class Derived, class Handle>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : driver_(std::move(other.driver_)), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      driver_ = std::move(other.driver_);
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~Owned() { reset(); }

  explicit operator bool() const noexcept { return driver_ != nullptr; }
  Handle get() const noexcept { return handle_; }
  const DriverRef& driver() const noexcept { return driver_; }
  // Passes ownership to the caller.
  Handle release() noexcept {
    driver_ = nullptr;
    return std::exchange(handle_, Handle{});
  }
  void reset() noexcept {
    if (!driver_) return;
    Derived::give_back(*driver_, handle_);
    driver_ = nullptr;
    handle_ = Handle{};
  }

 protected:
  Owned(DriverRef driver, Handle handle) noexcept : driver_(std::move(driver)), handle_(handle) {}

 private:
  DriverRef driver_;
  Handle handle_{};
};

struct RetainedContext {
  CUcontext context = nullptr;
  CUdevice device = 0;
};

// One retain of a device's primary context.
class PrimaryContext : public Owned<PrimaryContext, RetainedContext> {
 public:
  static Result<PrimaryContext> retain(DriverRef driver, CUdevice device);
  PrimaryContext() = default;
  CUcontext context() const noexcept { return get().context; }
  CUdevice device() const noexcept { return get().device; }
  static void give_back(const Driver& driver, RetainedContext handle) noexcept;

 private:
  using Owned::Owned;
};

// Makes a context current on this thread and restores the previous one on destruction. Bound to its
// scope and thread.
class ScopedContext {
 public:
  static Result<ScopedContext> push(DriverRef driver, CUcontext context);
  ScopedContext(ScopedContext&& other) noexcept : driver_(std::move(other.driver_)) {}
  ScopedContext& operator=(ScopedContext&&) = delete;
  ~ScopedContext();

 private:
  explicit ScopedContext(DriverRef driver) noexcept : driver_(std::move(driver)) {}
  DriverRef driver_;
};

// While it lives, driver calls of this thread do not invalidate captures in progress on other
// threads or on other streams of this thread.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) noexcept : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() noexcept { (void)driver_->cuThreadExchangeStreamCaptureMode(&mode_); }
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

class Stream : public Owned<Stream, CUstream> {
 public:
  // Non-blocking: it never synchronises with the legacy default stream.
  static Result<Stream> create(DriverRef driver);
  // Highest priority: pending kernels run before those of other streams.
  static Result<Stream> create_urgent(DriverRef driver);
  Stream() = default;
  Status synchronize() const;
  static void give_back(const Driver& driver, CUstream handle) noexcept;

 private:
  using Owned::Owned;
};

enum class Timing { off, on };  // an event without timing is cheaper

class Event : public Owned<Event, CUevent> {
 public:
  static Result<Event> create(DriverRef driver, Timing timing = Timing::off);
  Event() = default;
  Status record(CUstream stream) const;
  Result<bool> complete() const;
  Status synchronize() const;
  static void give_back(const Driver& driver, CUevent handle) noexcept;

 private:
  using Owned::Owned;
};

// One reference to physical memory. Memory still mapped outlives it.
class VmmHandle : public Owned<VmmHandle, CUmemGenericAllocationHandle> {
 public:
  static Result<VmmHandle> create(DriverRef driver, std::size_t bytes, const CUmemAllocationProp& properties);
  // `fd` is an exported descriptor; the caller keeps it.
  static Result<VmmHandle> import_fd(DriverRef driver, int fd);
  VmmHandle() = default;
  // The caller closes the descriptor. REQUIRES: the handle was created exportable.
  Result<int> export_fd() const;
  static void give_back(const Driver& driver, CUmemGenericAllocationHandle handle) noexcept;

 private:
  using Owned::Owned;
};

CUmemAllocationProp device_memory(int device, bool exportable);
CUmemAllocationProp host_memory(int numa_node, bool exportable);

struct AddressRange {
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
};

// A reserved address range. Every mapping in it must be unmapped before destruction.
class Reservation : public Owned<Reservation, AddressRange> {
 public:
  // `hint` is the preferred begin; 0: none.
  static Result<Reservation> create(DriverRef driver, std::size_t bytes, std::size_t alignment = 0,
                                    CUdeviceptr hint = 0);
  Reservation() = default;
  CUdeviceptr begin() const noexcept { return get().begin; }
  std::size_t bytes() const noexcept { return get().bytes; }
  static void give_back(const Driver& driver, AddressRange handle) noexcept;

 private:
  using Owned::Owned;
};

struct HostRange {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Pinned host memory, usable from every context.
class PinnedBuffer : public Owned<PinnedBuffer, HostRange> {
 public:
  static Result<PinnedBuffer> create(DriverRef driver, std::size_t bytes);
  PinnedBuffer() = default;
  std::byte* data() const noexcept { return static_cast<std::byte*>(get().data); }
  std::size_t bytes() const noexcept { return get().bytes; }
  static void give_back(const Driver& driver, HostRange handle) noexcept;

 private:
  using Owned::Owned;
};

// Memory of the current context's device, from cuMemAlloc.
class DeviceMemory : public Owned<DeviceMemory, CUdeviceptr> {
 public:
  static Result<DeviceMemory> create(DriverRef driver, std::size_t bytes);
  DeviceMemory() = default;
  static void give_back(const Driver& driver, CUdeviceptr handle) noexcept;

 private:
  using Owned::Owned;
};

class Module : public Owned<Module, CUmodule> {
 public:
  static Result<Module> load(DriverRef driver, const void* image);
  Module() = default;
  // The function is valid as long as the module.
  Result<CUfunction> function(const char* name) const;
  static void give_back(const Driver& driver, CUmodule handle) noexcept;

 private:
  using Owned::Owned;
};

}  // namespace vmem::gpu
