#include "migration/place/lendable.hpp"

#include <algorithm>

namespace vmem::migration {

std::uint64_t left_to_lend(const Device& device, std::uint64_t most_bytes) {
  const std::uint64_t own = std::min(device.committed_bytes, device.config.hbm_bytes);
  const std::uint64_t left = device.config.hbm_bytes - own;
  return std::min(most_bytes, left / pagetable::kGranuleBytes * pagetable::kGranuleBytes);
}

std::uint64_t lendable(const Devices& devices, const PeerTier& lent) {
  if (!lent.lender) return lent.tier->usage().budget_bytes;
  return left_to_lend(devices[*lent.lender], lent.most_bytes);
}

std::uint64_t lent_for_certain(const Devices& devices, const PeerTier& lent) {
  return lent.revocable ? 0 : lendable(devices, lent);
}

bool lent_comes_back(const Core& core, const Devices& devices) {
  return std::ranges::any_of(core.config.loans, [&](const Loan& out) {
    const Loan::InUse held = out.held();
    return held.bytes - std::min(held.bytes, held.overdue_bytes) > left_to_lend(devices[out.lender], out.most_bytes);
  });
}

}  // namespace vmem::migration
