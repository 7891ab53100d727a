#include "tiers/host_options.hpp"

#include <fmt/format.h>

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

Result<HostShare> parse_share(std::string_view text) {
  constexpr std::uint64_t kWhole = 100;
  if (text.ends_with('%')) {
    VMEM_ASSIGN(const std::uint64_t percent, parse_count(text.substr(0, text.size() - 1), kWhole));
    return HostShare{.percent = std::uint32_t(percent)};
  }
  VMEM_ASSIGN(const std::uint64_t bytes, parse_size(text, {.most = 64 * kTiB}));
  return HostShare{.bytes = bytes};
}

Option<HostOptions> published_cache_option() {
  return define({.name = "published_cache",
                 .values = "a size such as 8GiB, or a part of host from 0% to 100%; 0: none",
                 .only_with = "cluster",
                 .help = "Most host memory for copies of pages that other nodes published. Beyond it the least "
                         "recently used go; the program's own pages never leave for them.",
                 .print =
                     [](const HostOptions& options) {
                       const HostShare& share = options.published_cache;
                       return share.percent == 0 ? exact_bytes(share.bytes) : fmt::format("{}%", share.percent);
                     }},
                &HostOptions::published_cache, parse_share);
}

}  // namespace

std::vector<Option<HostOptions>> host_options() {
  return {host_option(), host_ahead_option(), published_cache_option()};
}

}  // namespace vmem
