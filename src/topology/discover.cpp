#include "topology/discover.hpp"

#include "gpu/device_info.hpp"
#include "topology/assemble.hpp"

namespace vmem::topology {
namespace {

int peer_attribute(const gpu::Driver& driver, CUdevice_P2PAttribute which, CUdevice from, CUdevice to) {
  int value = 0;
  return driver->cuDeviceGetP2PAttribute(&value, which, from, to) == CUDA_SUCCESS ? value : 0;
}

Result<PairFacts> ask_pair(const gpu::Driver& driver, CUdevice from, CUdevice to) {
  PairFacts facts;
  int reachable = 0;
  VMEM_TRY(driver.check(driver->cuDeviceCanAccessPeer(&reachable, from, to), "cuDeviceCanAccessPeer"));
  facts.access.reachable = reachable != 0;
  facts.access.rank = peer_attribute(driver, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, from, to);
  facts.native_atomics =
      reachable != 0 && peer_attribute(driver, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, from, to) != 0;
  return facts;
}

Status ask_driver(const gpu::Driver& driver, Facts& facts) {
  int count = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<CUdevice> handles;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    VMEM_ASSIGN(const gpu::DeviceInfo info, gpu::query_device(driver, ordinal));
    CUdevice handle = 0;
    VMEM_TRY(driver.check(driver->cuDeviceGet(&handle, ordinal), "cuDeviceGet"));
    handles.push_back(handle);
    DeviceFacts device{info.name, info.pci_bus_id, info.memory_bytes, std::nullopt, {}, std::nullopt};
    int node = -1;  // the driver returns -1 if unknown
    if (driver->cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, handle) == CUDA_SUCCESS && node >= 0)
      device.numa_node = node;
    facts.devices.push_back(std::move(device));
  }
  for (const CUdevice from : handles) {
    auto& row = facts.pairs.emplace_back();
    for (const CUdevice to : handles) {
      if (from == to) {
        row.push_back({.access = {.reachable = true}});
        continue;
      }
      VMEM_ASSIGN(PairFacts pair, ask_pair(driver, from, to));
      row.push_back(pair);
    }
  }
  return {};
}

void ask_nvml(const gpu::Driver& driver, Facts& facts) {
  const auto nvml = gpu::Nvml::load(driver);
  if (!nvml) {
    facts.unknown.push_back("what NVML would say of NVLinks and PCIe: " + nvml.error().message);
    return;
  }
  facts.nvml = true;
  std::vector<std::optional<gpu::NvmlDevice>> devices;
  for (DeviceFacts& device : facts.devices) {
    devices.push_back((*nvml)->find(device.pci_bus_id));
    if (!devices.back()) {
      facts.unknown.push_back("NVML does not know the device at " + device.pci_bus_id);
      continue;
    }
    device.nvlinks = (*nvml)->active_links(*devices.back());
    device.pcie = (*nvml)->pcie(*devices.back());
  }
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = 0; j < devices.size(); ++j) {
      if (i == j || !devices[i] || !devices[j]) continue;
      facts.pairs[i][j].nvlink = (*nvml)->joined_by_nvlink(*devices[i], *devices[j]);
      facts.pairs[i][j].meeting = (*nvml)->meeting(*devices[i], *devices[j]);
    }
}

void ask_hwloc(Facts& facts) {
  auto tree = read_host_tree();
  if (tree)
    facts.host = *std::move(tree);
  else
    facts.unknown.push_back("the PCIe tree, disks and network cards: " + tree.error().message);
}

}  // namespace

Result<Topology> discover(const gpu::Driver& driver, const Sources& sources) {
  Facts facts;
  facts.emulated = driver.emulated();
  VMEM_TRY(ask_driver(driver, facts));
  if (sources.nvml) ask_nvml(driver, facts);
  if (sources.hwloc && !driver.emulated()) ask_hwloc(facts);
  return assemble(facts);
}

Topology discover_host(const std::string& why) {
  Facts facts;
  facts.unknown.push_back("GPUs and their links: " + why);
  ask_hwloc(facts);
  return assemble(facts);
}

}  // namespace vmem::topology
