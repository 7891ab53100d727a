// The emulated machine's NVML: which devices are linked, by how many NVLinks, and below which PCIe
// switch. It reports no PCIe rates: these are measured.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "gpu/emu/api_entry.hpp"
#include "gpu/nvml_table.hpp"

using namespace vmem::emu;
using namespace vmem::gpu;

#pragma GCC visibility push(default)
extern "C" {
#define VMEM_DECLARE(result, name, parameters) result name parameters;
VMEM_NVML_FUNCTIONS(VMEM_DECLARE)
#undef VMEM_DECLARE
}
#pragma GCC visibility pop

namespace {

constexpr double nvlink_gbps = 25;

// A handle is the device's address.
NvmlDevice to_handle(Device* device) { return reinterpret_cast<NvmlDevice>(device); }
Device* to_device(NvmlDevice handle) {
  for (int i = 0; i < machine().config().devices; ++i)
    if (to_handle(machine().device(i)) == handle) return machine().device(i);
  return nullptr;
}

// The peer's ordinal for each of a device's NVLinks.
std::vector<int> links_of(const Device& device) {
  std::vector<int> links;
  const Config& config = machine().config();
  for (int peer = 0; config.nvlink && peer < config.devices; ++peer) {
    const PeerLink link = config.peer_link(device.ordinal, peer);
    if (peer == device.ordinal || !link.connected) continue;
    const double count = std::clamp(std::floor(link.gbps / nvlink_gbps), 1., double(kNvmlMostLinks));
    links.insert(links.end(), static_cast<std::size_t>(count), peer);
  }
  if (links.size() > kNvmlMostLinks) links.resize(kNvmlMostLinks);
  return links;
}

// The peer's ordinal, or -1 if the device has no such link.
int remote_of(NvmlDevice handle, unsigned link) {
  const Device* device = to_device(handle);
  if (!device) return -1;
  const auto links = links_of(*device);
  return link < links.size() ? links[link] : -1;
}

}  // namespace

int nvmlInit_v2() { return machine().initialized() && machine().config().nvml ? kNvmlSuccess : kNvmlDriverNotLoaded; }

const char* nvmlErrorString(int result) {
  switch (result) {
    case kNvmlSuccess:
      return "Success";
    case kNvmlInvalidArgument:
      return "Invalid Argument";
    case kNvmlNotSupported:
      return "Not Supported";
    case kNvmlNotFound:
      return "Not Found";
    case kNvmlDriverNotLoaded:
      return "Driver Not Loaded";
    default:
      return "Unknown Error";
  }
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, NvmlDevice* handle) {
  if (!bus_id || !handle) return kNvmlInvalidArgument;
  unsigned domain = 0, bus = 0;
  if (std::sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || domain != 0 || bus == 0) return kNvmlNotFound;
  Device* device = machine().device(static_cast<int>(bus) - 1);
  if (!device) return kNvmlNotFound;
  *handle = to_handle(device);
  return kNvmlSuccess;
}

int nvmlDeviceGetTopologyCommonAncestor(NvmlDevice handle, NvmlDevice other_handle, unsigned* level) {
  const Device *device = to_device(handle), *other = to_device(other_handle);
  if (!device || !other || device == other || !level) return kNvmlInvalidArgument;
  const Config& config = machine().config();
  const int below = config.pcie_switch(device->ordinal);
  if (below >= 0 && below == config.pcie_switch(other->ordinal))
    *level = kNvmlOneSwitch;
  else
    *level = config.numa_node(device->ordinal) == config.numa_node(other->ordinal) ? kNvmlNumaNode : kNvmlSystem;
  return kNvmlSuccess;
}

int nvmlDeviceGetP2PStatus(NvmlDevice handle, NvmlDevice other_handle, unsigned what, unsigned* status) {
  const Device *device = to_device(handle), *other = to_device(other_handle);
  if (!device || !other || device == other || !status) return kNvmlInvalidArgument;
  if (what != kNvmlP2pOverNvlink) return kNvmlNotSupported;
  const auto links = links_of(*device);
  *status = std::ranges::find(links, other->ordinal) == links.end();
  return kNvmlSuccess;
}

int nvmlDeviceGetMaxPcieLinkGeneration(NvmlDevice, unsigned*) { return kNvmlNotSupported; }
int nvmlDeviceGetMaxPcieLinkWidth(NvmlDevice, unsigned*) { return kNvmlNotSupported; }

int nvmlDeviceGetNvLinkState(NvmlDevice handle, unsigned link, unsigned* active) {
  if (!to_device(handle) || link >= kNvmlMostLinks || !active) return kNvmlInvalidArgument;
  *active = remote_of(handle, link) >= 0;
  return kNvmlSuccess;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(NvmlDevice handle, unsigned link, NvmlPciInfo* remote) {
  const int ordinal = remote_of(handle, link);
  if (ordinal < 0 || !remote) return kNvmlInvalidArgument;
  *remote = {};
  const auto bus = static_cast<unsigned char>(ordinal + 1);
  remote->bus = bus;
  std::snprintf(remote->bus_id_legacy, sizeof remote->bus_id_legacy, "0000:%02X:00.0", bus);
  std::snprintf(remote->bus_id, sizeof remote->bus_id, "00000000:%02X:00.0", bus);
  return kNvmlSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(NvmlDevice handle, unsigned link, unsigned* type) {
  if (remote_of(handle, link) < 0 || !type) return kNvmlInvalidArgument;
  *type = kNvmlRemoteGpu;
  return kNvmlSuccess;
}

int nvmlDeviceGetFieldValues(NvmlDevice handle, int count, NvmlFieldValue* values) {
  if (!to_device(handle) || count < 0 || !values) return kNvmlInvalidArgument;
  for (NvmlFieldValue& value : std::span(values, static_cast<std::size_t>(count))) {
    const bool known = value.field == kNvmlFieldNvlinkSpeed && remote_of(handle, value.scope) >= 0;
    value.result = known ? kNvmlSuccess : kNvmlNotSupported;
    if (known) value.value = static_cast<unsigned>(nvlink_gbps * 1e3);
  }
  return kNvmlSuccess;
}
