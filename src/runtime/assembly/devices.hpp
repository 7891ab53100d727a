// The GPUs of the process, in the order of the option devices. A device's index is its position
// there; its ordinal is the driver's number.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "runtime/options/options.hpp"

namespace vmem::runtime {

// At most this many: a set of devices is one 32-bit word.
inline constexpr std::size_t kMostDevices = 32;

// One GPU, with its primary context retained.
struct Device {
  explicit Device(std::shared_ptr<const gpu::Driver> of) : driver(std::move(of)) {}
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  // Errors: UNSUPPORTED without virtual memory management; those of the driver.
  Status open(int driver_ordinal);

  const std::shared_ptr<const gpu::Driver> driver;
  int ordinal = 0;
  CUdevice handle = 0;
  CUcontext context = nullptr;
  CUstream io = nullptr;  // of copy_window; used under io_mutex
  std::mutex io_mutex;
};

// Copies between host memory and a mapping of a frame, and waits for the end.
enum class WindowCopy : std::uint8_t { to_host, to_window };
Status copy_window(Device& device, CUdeviceptr window, void* host, std::uint64_t bytes, WindowCopy way);

// Constant once opened; any thread.
class Devices {
 public:
  // `wanted`: ordinals; empty: all GPUs that the driver sees. Errors: NO_DRIVER, INVALID_OPTION,
  // UNSUPPORTED.
  static Result<std::unique_ptr<Devices>> open(const std::shared_ptr<const gpu::Driver>& driver,
                                               const std::vector<int>& wanted);

  std::size_t size() const { return devices_.size(); }
  Device& operator[](std::size_t index) const { return *devices_[index]; }
  Device& front() const { return *devices_.front(); }
  auto begin() const { return devices_.begin(); }
  auto end() const { return devices_.end(); }
  const Device* find(int ordinal) const;  // null: not in use
  // Errors: INVALID_VALUE, with the ordinals in use.
  Result<int> index_of(int ordinal) const;
  CUcontext context_of(int ordinal) const;  // null: not in use
  Status synchronize(int ordinal) const;    // waits for all work of a device

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

struct DeviceMemory {
  std::uint64_t free_bytes = 0, total_bytes = 0;
};
Result<DeviceMemory> free_memory(const Device& device);

// Bytes of HBM that vmem may use on the device: the option hbm, or the free memory less headroom.
// Errors: INVALID_OPTION if that is more than is free, or too little to work with.
Result<std::uint64_t> hbm_budget(const Options& options, const Device& device);

}  // namespace vmem::runtime
