#include "tiers/tier.hpp"

#include <atomic>

namespace vmem::tiers {

std::uint64_t next_transfer_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace vmem::tiers
