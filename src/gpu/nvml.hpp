// A loaded NVML, with results in the topology's terms.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "gpu/nvml_table.hpp"

namespace vmem::gpu {

struct NvLink {
  enum class Remote { gpu, fabric, unknown };  // fabric: NVSwitches
  Remote remote = Remote::unknown;
  std::string pci_bus_id;             // of the remote; empty if NVML does not report it
  std::optional<double> bytes_per_s;  // in each direction
};

enum class PcieMeeting { one_switch, several_switches, host };

class Nvml {
 public:
  // Loads the NVML that belongs to the driver (the emulated driver is its own). Never unloaded.
  // Errors: UNSUPPORTED, with the reason.
  static Result<std::shared_ptr<const Nvml>> load(const Driver& driver);

  // Bus ids have the driver's format. A result is empty if NVML does not report it.
  std::optional<NvmlDevice> find(const std::string& pci_bus_id) const;
  std::vector<NvLink> active_links(NvmlDevice device) const;
  std::optional<PcieMeeting> meeting(NvmlDevice device, NvmlDevice other) const;
  std::optional<bool> joined_by_nvlink(NvmlDevice device, NvmlDevice other) const;
  struct Pcie {
    unsigned generation = 0, lanes = 0;
  };
  std::optional<Pcie> pcie(NvmlDevice device) const;

 private:
  std::optional<NvLink> active_link(NvmlDevice device, unsigned link) const;

  NvmlTable table_;
};

}  // namespace vmem::gpu
