#include "migration/place/full_error.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/sizes.hpp"

namespace vmem::migration {

Error full_error(const Core& core, const Devices& devices, const NearSlots& near, const Below& below, const char* what,
                 std::uint64_t bytes) {
  std::string hbm;
  for (const Device& device : devices.all()) {
    hbm += fmt::format("HBM of device {}: {} of {}; ", device.config.ordinal, format_bytes(device.hbm.used_bytes()),
                       format_bytes(device.hbm.budget_bytes()));
  }
  std::vector<const tiers::Tier*> others;
  for (std::size_t i = 1; i < near.count(); ++i) others.push_back(near[i].tier);
  others.push_back(core.config.backing);
  if (core.config.spill != nullptr) others.push_back(core.config.spill);
  std::string tiers_below;
  for (const tiers::Tier* tier : others) {
    const tiers::TierUsage usage = tier->usage();
    tiers_below += fmt::format("{}{}: {} of {}", tiers_below.empty() ? "" : "; ", tier->info().name,
                               format_bytes(usage.used_bytes), format_bytes(usage.budget_bytes));
  }
  if (const std::string& error = below.pacing().error(); !error.empty())
    tiers_below += fmt::format("; the last page that could not be stored below: {}", error);
  return {
      VMEM_ERROR_OUT_OF_MEMORY, 0,
      fmt::format("no memory for {} of {}: {}{}; release or free something, or raise --hbm, --host, --nvme or --remote",
                  what, format_bytes(bytes), hbm, tiers_below)};
}

}  // namespace vmem::migration
