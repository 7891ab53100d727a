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

// Of host memory: so many bytes, or so many hundredths.
struct HostShare {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;  // not 0: `bytes` does not count

  std::uint64_t of(std::uint64_t host_bytes) const {
    return percent == 0 ? bytes : host_bytes / 100 * percent + host_bytes % 100 * percent / 100;
  }
};

struct HostOptions {
  // --host: pinned host pool; "auto": half of the available memory
  std::optional<std::uint64_t> host_bytes;
  // --host-ahead: pinned before HBM overflows; "auto": see the option's help
  std::optional<std::uint64_t> host_ahead_bytes;
  // --published-cache: for copies of pages that other nodes published
  HostShare published_cache{.percent = 50};
};

std::vector<Option<HostOptions>> host_options();

}  // namespace vmem
