#include "migration/mover_options.hpp"

#include <fmt/format.h>

#include <bit>

#include "base/option_parse.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kTiB = 1ull << 40;
constexpr std::uint64_t kGranule = 2ull << 20;
constexpr std::uint64_t kMostPrefetchPages = 65536;

Result<std::optional<std::uint64_t>> parse_page(std::string_view text) {
  if (text == "auto") return std::nullopt;
  VMEM_ASSIGN(const std::uint64_t bytes, parse_size(text, {.least = kGranule, .most = 256 * kMiB}));
  if (!std::has_single_bit(bytes)) return fail(VMEM_ERROR_INVALID_OPTION, "not a power of two");
  return bytes;
}

Result<std::uint32_t> parse_prefetch(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t pages, parse_count(text, kMostPrefetchPages));
  return std::uint32_t(pages);
}

Option<MoverOptions> hbm_option() {
  return automatic_size_option({.name = "hbm",
                                .values = "auto, or a size from " + exact_bytes(kSmallestHbm) + " such as 16GiB",
                                .help = "GPU memory used per device; auto: what is free at the start, less headroom."},
                               &MoverOptions::hbm_bytes, {.least = kSmallestHbm, .most = 64 * kTiB});
}

Option<MoverOptions> headroom_option() {
  return size_option({.name = "headroom",
                      .values = "a size such as 1GiB",
                      .only_with = "hbm=auto",
                      .help = "GPU memory per device left to others (libraries, other programs) when hbm is auto."},
                     &MoverOptions::headroom_bytes, {.most = 64 * kTiB});
}

Option<MoverOptions> page_option() {
  return define(
      {.name = "page",
       .values = "auto, or a power of two from 2MiB to 256MiB",
       .help = "Unit of migration; auto: by the size of the allocation.",
       .print = [](const MoverOptions& o) { return o.page_bytes ? exact_bytes(*o.page_bytes) : std::string("auto"); }},
      &MoverOptions::page_bytes, parse_page);
}

Option<MoverOptions> acquire_wait_option() {
  return define(
      {.name = "acquire_wait",
       .values = "a duration up to an hour such as 250us, 100ms or 2s",
       .help = "How long an acquire that finds no GPU memory waits without GPU progress before it is served in place.",
       .print = [](const MoverOptions& options) { return exact_duration_us(options.acquire_wait_us); }},
      &MoverOptions::acquire_wait_us, parse_wait);
}

Option<MoverOptions> call_wait_option() {
  return define(
      {.name = "call_wait",
       .values = "a duration from 100ms to an hour such as 5s",
       .help =
           "How long a call waits for a page that a disk or another node does not bring, or for room that they do not "
           "make. Then it fails with TIMEOUT, and the page is kept.",
       .print = [](const MoverOptions& options) { return exact_duration_us(options.call_wait_us); }},
      &MoverOptions::call_wait_us, parse_long_wait);
}

Option<MoverOptions> prefetch_option() {
  return define(
      {.name = "prefetch",
       .values = "0 to 65536 pages",
       .help = "Pages fetched ahead of a sequential scan; of disks, files and other nodes at least 64 MiB. 0 turns it "
               "off.",
       .print = [](const MoverOptions& options) { return fmt::to_string(options.prefetch_pages); }},
      &MoverOptions::prefetch_pages, parse_prefetch);
}

Option<MoverOptions> share_pages_option() {
  return switch_option({.name = "share_pages",
                        .help = "Under `vmem run`: allocations above 1 MiB are placed side by side in large pages, so "
                                "that there are fewer to map. Off with strict, drained and protect."},
                       &MoverOptions::share_pages);
}

Option<MoverOptions> try_in_place_option() {
  return switch_option(
      {.name = "try_in_place",
       .help =
           "Under `vmem run`: allocations whose pages change in part while they are in HBM, as tables of embeddings "
           "do, are tried in host memory, and stay there if the program is faster so. Off with strict, drained and "
           "protect."},
      &MoverOptions::try_in_place);
}

Option<MoverOptions> protect_option() {
  return switch_option(
      {.name = "protect",
       .help = "Maps what is acquired for reading read-only, so that stray writes fault; for checking a program. "
               "Allocations up to 1 MiB share pages, and are left out."},
      &MoverOptions::protect);
}

}  // namespace

std::vector<Option<MoverOptions>> mover_options() {
  return {hbm_option(),      headroom_option(),    page_option(),         acquire_wait_option(), call_wait_option(),
          prefetch_option(), share_pages_option(), try_in_place_option(), protect_option()};
}

}  // namespace vmem
