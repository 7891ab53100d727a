// Options of this module. HBM, pages, and how long calls wait for them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/option.hpp"

namespace vmem {

// The smallest budget: below it the runtime has no room to move pages. Also limits a budget that
// the runtime chooses itself.
inline constexpr std::uint64_t kSmallestHbm = std::uint64_t{32} << 20;
// A page is at most 1/kPagesInHbm of the HBM budget.
inline constexpr std::uint64_t kPagesInHbm = 8;

struct MoverOptions {
  // --hbm: frames per device; "auto" (nullopt): free memory less headroom
  std::optional<std::uint64_t> hbm_bytes;
  // --headroom: HBM left free when --hbm is auto
  std::uint64_t headroom_bytes = std::uint64_t{1} << 30;
  // --page: "auto" or a power of two from 2 MiB to 256 MiB
  std::optional<std::uint64_t> page_bytes;
  // --acquire-wait: e.g. "100ms"; serve in place after this long without GPU progress
  std::uint64_t acquire_wait_us = 100'000;
  std::uint64_t call_wait_us = 30'000'000;  // --call-wait: for a disk or node that a page waits for
  // --prefetch: pages to keep ahead of a scan; 0 turns prefetch off
  std::uint32_t prefetch_pages = 8;
  // --share-pages: off: every allocation under `vmem run` has pages of its own
  bool share_pages = true;
  // --try-in-place: off: what a program under `vmem run` allocates is used in HBM where it fits
  bool try_in_place = true;
  bool protect = false;  // --protect: on: read acquires are mapped read-only
};

std::vector<Option<MoverOptions>> mover_options();

}  // namespace vmem
