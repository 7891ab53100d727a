#include "migration/requests/pins.hpp"

#include <fmt/format.h>

#include "base/sizes.hpp"

namespace vmem::migration {
namespace {

// Pins leave this share of the budget to other pages.
constexpr std::uint64_t kUnpinnedShare = 8;

std::uint64_t pin_limit(std::uint64_t budget) { return budget - budget / kUnpinnedShare; }

}  // namespace

Status check_room_for_pins(const Device& device, std::uint64_t bytes) {
  const std::uint64_t budget = device.hbm.budget_bytes(), limit = pin_limit(budget);
  if (device.pinned_bytes + bytes <= limit) return {};
  return fail(
      VMEM_ERROR_OUT_OF_MEMORY,
      fmt::format("cannot pin {}: {} are pinned on device {} and {} of its {} of HBM may be; unpin something or "
                  "raise --hbm",
                  format_bytes(bytes), format_bytes(device.pinned_bytes), device.config.ordinal, format_bytes(limit),
                  format_bytes(budget)));
}

}  // namespace vmem::migration
