#include "gpu/nvml.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace vmem::gpu {
namespace {

constexpr const char* kInstalled = "libnvidia-ml.so.1";
constexpr const char* kNullBusId = "00000000:00:00.0";

}  // namespace

Result<std::shared_ptr<const Nvml>> Nvml::load(const Driver& driver) {
  const std::string name = driver.emulated() ? driver.path() : kInstalled;
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("NVML cannot be loaded: {}", reason ? reason : name));
  }
  auto nvml = std::make_shared<Nvml>();
#define VMEM_RESOLVE(result, name, parameters) \
  nvml->table_.name = reinterpret_cast<decltype(nvml->table_.name)>(dlsym(library, #name));
  VMEM_NVML_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  const NvmlTable& table = nvml->table_;
  if (!table.nvmlInit_v2 || !table.nvmlErrorString || !table.nvmlDeviceGetHandleByPciBusId_v2)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} is no NVML, or one that is too old", name));
  if (const int result = table.nvmlInit_v2(); result != kNvmlSuccess)
    return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("NVML does not start: {}", table.nvmlErrorString(result)), result);
  return nvml;
}

std::optional<NvmlDevice> Nvml::find(const std::string& pci_bus_id) const {
  NvmlDevice device = nullptr;
  if (table_.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.c_str(), &device) != kNvmlSuccess) return std::nullopt;
  return device;
}

std::vector<NvLink> Nvml::active_links(NvmlDevice device) const {
  std::vector<NvLink> links;
  for (unsigned link = 0; link < kNvmlMostLinks; ++link)
    if (auto active = active_link(device, link)) links.push_back(*std::move(active));
  return links;
}

std::optional<NvLink> Nvml::active_link(NvmlDevice device, unsigned link) const {
  unsigned active = 0;
  if (!table_.nvmlDeviceGetNvLinkState || table_.nvmlDeviceGetNvLinkState(device, link, &active) != kNvmlSuccess ||
      active == 0)
    return std::nullopt;
  NvLink result;
  unsigned type = 0;
  if (table_.nvmlDeviceGetNvLinkRemoteDeviceType &&
      table_.nvmlDeviceGetNvLinkRemoteDeviceType(device, link, &type) == kNvmlSuccess) {
    if (type == kNvmlRemoteGpu) result.remote = NvLink::Remote::gpu;
    if (type == kNvmlRemoteSwitch) result.remote = NvLink::Remote::fabric;
  }
  NvmlPciInfo remote{};
  if (table_.nvmlDeviceGetNvLinkRemotePciInfo_v2 &&
      table_.nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &remote) == kNvmlSuccess) {
    remote.bus_id[sizeof remote.bus_id - 1] = '\0';
    if (std::string_view(remote.bus_id) != kNullBusId) result.pci_bus_id = remote.bus_id;
  }
  NvmlFieldValue speed{};
  speed.field = kNvmlFieldNvlinkSpeed;
  speed.scope = link;
  if (table_.nvmlDeviceGetFieldValues && table_.nvmlDeviceGetFieldValues(device, 1, &speed) == kNvmlSuccess &&
      speed.result == kNvmlSuccess && speed.value > 0)
    result.bytes_per_s = speed.value * 1e6;
  return result;
}

std::optional<PcieMeeting> Nvml::meeting(NvmlDevice device, NvmlDevice other) const {
  unsigned level = 0;
  if (!table_.nvmlDeviceGetTopologyCommonAncestor ||
      table_.nvmlDeviceGetTopologyCommonAncestor(device, other, &level) != kNvmlSuccess)
    return std::nullopt;
  if (level <= kNvmlOneSwitch) return PcieMeeting::one_switch;
  return level <= kNvmlSeveralSwitches ? PcieMeeting::several_switches : PcieMeeting::host;
}

std::optional<bool> Nvml::joined_by_nvlink(NvmlDevice device, NvmlDevice other) const {
  unsigned status = 0;
  if (!table_.nvmlDeviceGetP2PStatus ||
      table_.nvmlDeviceGetP2PStatus(device, other, kNvmlP2pOverNvlink, &status) != kNvmlSuccess)
    return std::nullopt;
  return status == 0;
}

std::optional<Nvml::Pcie> Nvml::pcie(NvmlDevice device) const {
  Pcie pcie;
  if (!table_.nvmlDeviceGetMaxPcieLinkGeneration || !table_.nvmlDeviceGetMaxPcieLinkWidth ||
      table_.nvmlDeviceGetMaxPcieLinkGeneration(device, &pcie.generation) != kNvmlSuccess ||
      table_.nvmlDeviceGetMaxPcieLinkWidth(device, &pcie.lanes) != kNvmlSuccess || pcie.lanes == 0)
    return std::nullopt;
  return pcie;
}

}  // namespace vmem::gpu
