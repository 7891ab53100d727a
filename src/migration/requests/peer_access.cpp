// Opens a region to another device.
#include <fmt/format.h>

#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

using pagetable::Mapped;

std::optional<Status> PeerAccessRequest::advance(MoverParts& parts) {
  const auto& home = parts.devices.of(*region).config;
  if ((home.peers >> device & 1) == 0) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("device {} cannot access the memory of device {}: no peer access between them",
                            parts.devices[device].config.ordinal, home.ordinal));
  }
  for (const std::uint8_t lender : home.lenders) {
    if ((parts.core.config.peer_tiers[lender].reached_by >> device & 1) != 0) continue;
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("device {} cannot access {}, where pages of this allocation may lie; drop it from --peers",
                            parts.devices[device].config.ordinal, parts.near[lender + 1u].tier->info().name));
  }
  // New mappings allow the device from now on; existing ones are opened here; launching threads see
  // the device last.
  const std::uint32_t before = region->mapping_devices;
  region->mapping_devices |= 1u << device;
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    const Page& page = region->pages[i];
    if (page.mapped == Mapped::nothing) continue;
    const PageRef ref{region, i};
    if (auto opened = parts.mapper.set_access(ref, ref.state().access()); !opened) {
      region->mapping_devices = before;
      return opened;
    }
  }
  parts.residency.opened_to(region->mapping_devices & ~before);
  region->devices.store(region->mapping_devices, std::memory_order_release);
  return Status{};
}

}  // namespace vmem::migration
