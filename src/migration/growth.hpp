// A call that lacks room which other nodes may grant: what it has asked them for. Its next try
// continues it (Committer::commit).
#pragma once

#include <cstdint>
#include <optional>

namespace vmem::migration {

struct Growth {
  std::optional<std::uint64_t> ticket;  // of GrowingTier::need
  std::uint64_t below_bytes = 0;        // the budget of the tiers below when it asked
  bool waits = false;                   // the last try failed, and a later one may find room
};

}  // namespace vmem::migration
