// Shared pages are committed while blocks need them.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/memory_reserve.hpp"
#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "migration/requests/room_later.hpp"

namespace vmem::migration {

using pagetable::RegionState;

namespace {

// The region may have been ended since the call, or between two steps.
Status check_shared(const MoverParts& parts, const Region& region, std::uint32_t first_granule) {
  if (region.first.index == first_granule && region.shares() &&
      region.state.load(std::memory_order_relaxed) == RegionState::live)
    return {};
  return fail(VMEM_ERROR_INVALID_POINTER,
              fmt::format("the memory at {:#x} was freed", parts.core.config.space->address_of(first_granule)));
}

std::optional<Status> commit(MoverParts& parts, Region& region, std::uint32_t pages, Patience& patience,
                             Growth& growth) {
  const std::uint64_t page_bytes = region.page_bytes(), bytes = pages * page_bytes;
  auto room =
      parts.committer.commit(parts.devices.of(region), bytes, parts.committer.page_sizes_with(page_bytes), growth);
  if (!room && growth.waits) return std::nullopt;
  if (!room) return error_or_wait(parts, patience, std::move(room).error());
  region.extent.committed_pages += pages;
  parts.core.counters.committed_bytes += bytes;
  parts.committer.counts(page_bytes).of(region) += pages;
  (void)ran_within_memory([&] { parts.committer.expect_slots(); });  // slots can be created later
  return Status{};
}

}  // namespace

std::optional<Status> ExtendRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_shared(parts, *region, first_granule));
  if (!committed_) {
    const std::uint32_t left = region->page_count - region->extent.begun_pages.load(std::memory_order_relaxed);
    if (pages > left) {
      return fail(VMEM_ERROR_ADDRESS_SPACE,
                  fmt::format("{} further pages asked for in a range of addresses that has {} "
                              "left",
                              pages, left));
    }
    auto begun = commit(parts, *region, pages, patience_, growth_);
    if (!begun || !*begun) return begun;
    committed_ = true;
    mapped_ = first_page = region->extent.begun_pages.load(std::memory_order_relaxed);
    parts.residency.region_extended(*region, pages);
    if (!parts.premap.worth_it(*region, pages)) return Status{};
  }
  if (!parts.premap.map_some(*region, mapped_, first_page + pages)) return std::nullopt;
  return Status{};
}

std::optional<Status> CommitRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_shared(parts, *region, first_granule));
  if (what == What::commit) return commit(parts, *region, pages, patience_, growth_);
  const std::uint64_t bytes = pages * region->page_bytes();
  Device& home = parts.devices.of(*region);
  home.committed_bytes -= bytes;
  region->extent.committed_pages -= pages;
  parts.core.counters.committed_bytes -= bytes;
  parts.committer.counts(region->page_bytes()).of(*region) -= pages;
  (void)ran_within_memory([&] { parts.lending.balance(home); });  // the next change repeats it
  return Status{};
}

}  // namespace vmem::migration
