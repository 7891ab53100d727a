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

Option<HostOptions> host_ahead_option() {
  return automatic_size_option({.name = "host_ahead",
                                .values = "auto, or a size such as 8GiB; 0: none",
                                .help = "Host memory pinned before HBM overflows; auto: what a program that does not "
                                        "call vmem allocates beyond half of HBM, at most another half."},
                               &HostOptions::host_ahead_bytes, {.most = 64 * kTiB});
}

}  // namespace

std::vector<Option<HostOptions>> host_options() { return {host_option(), host_ahead_option()}; }

}  // namespace vmem
