// The capabilities of the machine's devices, queried once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"

namespace vmem::gpu {

struct DeviceInfo {
  int ordinal = 0;
  std::string name;
  std::array<std::uint8_t, 16> uuid{};
  std::string pci_bus_id;  // empty if the driver does not report it
  std::size_t memory_bytes = 0;
  int multiprocessors = 0;
  int host_numa_node = 0;                    // the nearest one
  bool vmm = false;                          // virtual memory management
  bool host_vmm = false;                     // VMM for host memory (HOST_NUMA)
  bool posix_fd = false;                     // handles can be exported as file descriptors
  std::size_t device_granularity_bytes = 0;  // 0 without vmm
  std::size_t host_granularity_bytes = 0;    // 0 without host_vmm
};

struct DeviceList {
  std::vector<DeviceInfo> devices;
  // peer_access[i][j]: device i can load from and store to device j's memory. True for i == j.
  std::vector<std::vector<bool>> peer_access;
};

// Needs no current context. Errors: DRIVER.
Result<DeviceInfo> query_device(const Driver& driver, int ordinal);
Result<DeviceList> query_devices(const Driver& driver);

// "GPU-6d656d76-...", the format of nvidia-smi.
std::string format_uuid(const std::array<std::uint8_t, 16>& uuid);

}  // namespace vmem::gpu
