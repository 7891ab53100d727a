#include "topology/known.hpp"

#include "base/log.hpp"
#include "topology/cache.hpp"
#include "topology/discover.hpp"

namespace vmem::topology {

Result<Topology> known_topology(const gpu::Driver& driver, const std::string& option) {
  if (const std::string path = cache_path(option, driver.emulated()); !path.empty()) {
    VMEM_ASSIGN(const MachineKey key, machine_key(driver));
    auto saved = load_saved(path, key);
    if (saved) {
      VMEM_LOG_INFO("links as `vmem topo` measured them on {}: {}", saved->measured_at, path);
      return std::move(saved->topology);
    }
    const Miss& miss = saved.error();
    if (option != "auto" || miss.reason == Miss::Reason::damaged)
      VMEM_LOG_WARN("{}; run `vmem topo` to measure this machine's links", miss.message);
    else
      VMEM_LOG_INFO("{}; `vmem topo` measures this machine's links", miss.message);
  }
  return discover(driver, {.nvml = false, .hwloc = false});
}

}  // namespace vmem::topology
