// For programs that do not say what they will need, but repeat themselves. The order in which undeclared regions were used is
// recorded; where the last uses are the same as at an earlier place of the record, what followed there is what comes next. Then
// the page to give up is the one whose next use is farthest, and what comes soonest is fetched ahead, as far as HBM can hold it.
// Where nothing is recognised, and for all other regions, another policy decides.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "migration/policy/policy.hpp"

namespace vmem::migration {

struct LookAheadOptions {
  std::vector<std::uint64_t> hbm_bytes;  // budget by device
};

std::unique_ptr<Policy> make_look_ahead_policy(const LookAheadOptions& options, std::unique_ptr<Policy> otherwise);

}  // namespace vmem::migration
