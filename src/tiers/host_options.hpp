// Options of this module. Host memory for pages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/option.hpp"

namespace vmem {

// The smallest budget: below it the runtime has no room to move pages. Also limits a budget that
// the runtime chooses itself.
inline constexpr std::uint64_t kSmallestHost = std::uint64_t{16} << 20;

struct HostOptions {
  // --host: pinned host pool; "auto": half of the available memory
  std::optional<std::uint64_t> host_bytes;
  // --host-ahead: pinned before HBM overflows; "auto": see the option's help
  std::optional<std::uint64_t> host_ahead_bytes;
};

std::vector<Option<HostOptions>> host_options();

}  // namespace vmem
