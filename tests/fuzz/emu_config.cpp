// The emulated machine's configuration in VMEM_EMU.
#include "gpu/emu/config.hpp"

#include "fuzz/input.hpp"

namespace vmem::emu {
namespace {

using fuzz::require;

void check(const Config& config) {
  require(config.devices >= 1 && config.devices <= device_count_max, "a machine has 1 to 16 devices");
  require(config.numa_nodes >= 1 && config.numa_nodes <= numa_count_max, "a machine has 1 to 64 NUMA nodes");
  for (const std::uint64_t bytes : {config.hbm_bytes, config.host_bytes})
    require(bytes >= granule_bytes && bytes % granule_bytes == 0 && bytes <= std::uint64_t{1} << 46,
            "memory is whole granules");
  for (int device = 0; device < config.devices; ++device) {
    const int node = config.numa_node(device), below = config.pcie_switch(device);
    require(node >= 0 && node < config.numa_nodes, "a device is near a NUMA node that is there");
    require(below >= -1 && below < int(config.pcie_switches.size()), "a device is below a switch that is there");
    for (int other = 0; other < config.devices; ++other) {
      const PeerLink link = config.peer_link(device, other), back = config.peer_link(other, device);
      require(link.gbps >= 0 && link.gbps == back.gbps && link.connected == back.connected, "links go both ways");
    }
  }
}

}  // namespace
}  // namespace vmem::emu

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem::emu;
  const std::string_view spec = vmem::fuzz::Input(data, size).text();
  Config config;
  std::string error;
  if (!parse_config(spec, config, error)) {
    vmem::fuzz::require(!error.empty(), "a refusal says why");
    vmem::fuzz::require(config.devices == Config{}.devices && config.hbm_bytes == Config{}.hbm_bytes,
                        "a refused setting changes nothing");
  }
  check(config);
  return 0;
}
