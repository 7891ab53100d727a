// For programs that do not declare their uses but repeat themselves. The policy records the order
// in which units are used: undeclared regions, and single pages that blocks share. When the latest
// uses match an earlier place of the record, it expects the uses that followed there. It then
// evicts the unit with the farthest next use, and prefetches units in the order of their next uses,
// as far as HBM has room. The first of them, up to an eighth of HBM, are fetched even if others
// must be evicted for them. What was freed is always evicted first. Without a match, and for
// declared regions, the policy `otherwise` decides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "migration/policy/policy.hpp"

namespace vmem::migration {

struct LookAheadOptions {
  std::vector<std::uint64_t> hbm_bytes;  // budget, by device
};

std::unique_ptr<Policy> make_look_ahead_policy(const LookAheadOptions& options, std::unique_ptr<Policy> otherwise);

}  // namespace vmem::migration
