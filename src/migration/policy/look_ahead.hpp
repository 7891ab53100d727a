// For programs that do not declare their uses but repeat themselves. The policy records the order
// in which undeclared regions are used. When the latest uses match an earlier place of the record,
// it expects the uses that followed there. It then evicts the region with the farthest next use,
// and prefetches the soonest as far as HBM has room; for the very next ones, up to an eighth of
// HBM, also without room. Freed regions are always evicted first. Otherwise, without a match and
// for all other regions, another policy decides.
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
