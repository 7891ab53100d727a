#include "tiers/host_options.hpp"

#include "base/option_parse.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kTiB = 1ull << 40;

Option<HostOptions> host_option() {
  return automatic_size_option({.name = "host",
                                .values = "auto, or a size from " + exact_bytes(kSmallestHost) + " such as 64GiB",
                                .help = "Most pinned host memory used; auto: half of what is available at the start."},
                               &HostOptions::host_bytes, {.least = kSmallestHost, .most = 64 * kTiB});
}

}  // namespace

std::vector<Option<HostOptions>> host_options() { return {host_option()}; }

}  // namespace vmem
