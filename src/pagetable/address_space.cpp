#include "pagetable/address_space.hpp"

#include <fmt/format.h>

#include <utility>

namespace vmem::pagetable {

Result<std::unique_ptr<AddressSpace>> AddressSpace::create(std::uintptr_t base, std::uint64_t bytes) {
  std::unique_ptr<AddressSpace> space(new AddressSpace(base, bytes));
  const std::size_t granules = bytes >> kGranuleShift;
  VMEM_ASSIGN(space->map_, LazyArray<std::atomic<std::uint32_t>>::create(granules));
  VMEM_ASSIGN(space->table_, LazyArray<Region*>::create(kMaxRegions));
  VMEM_ASSIGN(space->sharing_, SharedPages::create(granules));
  space->insert_run(0, std::uint32_t(granules));
  space->free_granules_ = granules;
  return space;
}

void AddressSpace::insert_run(std::uint32_t first, std::uint32_t count) {
  auto next = runs_by_first_.lower_bound(first);
  if (next != runs_by_first_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      first = previous->first;
      count += previous->second;
      runs_by_length_.erase({previous->second, previous->first});
      runs_by_first_.erase(previous);
    }
  }
  if (next != runs_by_first_.end() && first + count == next->first) {
    count += next->second;
    runs_by_length_.erase({next->second, next->first});
    runs_by_first_.erase(next);
  }
  runs_by_first_[first] = count;
  runs_by_length_.insert({count, first});
}

bool AddressSpace::take_run(std::uint32_t count, std::uint32_t align, std::uint32_t& first) {
  const std::uint32_t base_granule = std::uint32_t(base_ >> kGranuleShift);
  for (auto it = runs_by_length_.lower_bound({count, 0}); it != runs_by_length_.end(); ++it) {
    const auto [length, run_first] = *it;
    const std::uint32_t misaligned = (base_granule + run_first) & (align - 1);
    const std::uint32_t skip = misaligned == 0 ? 0 : align - misaligned;
    if (std::uint64_t{skip} + count > length) continue;
    runs_by_length_.erase(it);
    runs_by_first_.erase(run_first);
    first = run_first + skip;
    if (skip != 0) insert_run(run_first, skip);
    if (skip + count < length) insert_run(first + count, length - skip - count);
    return true;
  }
  return false;
}

Region* AddressSpace::new_region() {
  if (!free_ids_.empty()) {
    const RegionId id = free_ids_.back();
    free_ids_.pop_back();
    return table_[id.value];
  }
  if (next_id_ == kMaxRegions) return nullptr;
  Region& region = regions_.emplace_back();
  region.id = {next_id_};
  table_[next_id_++] = &region;
  return &region;
}

Result<Region*> AddressSpace::add(std::uint32_t granules, std::uint32_t page_shift) {
  const std::uint32_t page_count = granules >> page_shift;
  auto pages = std::make_unique<Page[]>(page_count);  // first: std::bad_alloc changes nothing
  Region* const region = new_region();
  if (region == nullptr)
    return fail(VMEM_ERROR_ADDRESS_SPACE, fmt::format("all {} regions are in use", kMaxRegions - 1));
  std::uint32_t first = 0;
  if (!take_run(granules, 1u << page_shift, first)) {
    free_ids_.push_back(region->id);
    return fail(
        VMEM_ERROR_ADDRESS_SPACE,
        fmt::format("no run of {} MiB left in the {} GiB address space: {} MiB are free, the longest run is {} MiB; "
                    "raise --space",
                    std::uint64_t{granules} * 2, bytes_ >> 30, free_bytes() >> 20, largest_free_bytes() >> 20));
  }
  free_granules_ -= granules;
  region->serial = next_serial_;
  next_serial_ = Serial{std::to_underlying(next_serial_) + 1};
  region->first = {first};
  region->granules = granules;
  region->page_shift = page_shift;
  region->page_count = page_count;
  region->whole = Span({first}, granules, Access::read);
  region->pages = std::move(pages);
  region->uses.clear();
  region->end_cursor = 0;
  region->unreadable = region->unwritable = region->page_count;
  region->attention = 0;
  region->devices = 0;
  region->extent.sharing.store(nullptr, std::memory_order_relaxed);
  region->extent.deaths_told.clear();
  for (std::uint32_t i = 0; i < granules; ++i) map_[first + i].store(region->id.value, std::memory_order_release);
  return region;
}

void AddressSpace::remove(Region& region) {
  for (std::uint32_t i = 0; i < region.granules; ++i) map_[region.first.index + i].store(0, std::memory_order_release);
  region.pages.reset();  // first: insert_run needs a little memory
  insert_run(region.first.index, region.granules);
  free_granules_ += region.granules;
  region.state = RegionState::empty;
  free_ids_.push_back(region.id);
}

std::uint64_t AddressSpace::largest_free_bytes() const noexcept {
  return runs_by_length_.empty() ? 0 : std::uint64_t{runs_by_length_.rbegin()->first} << kGranuleShift;
}

}  // namespace vmem::pagetable
