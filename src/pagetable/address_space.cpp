#include "pagetable/address_space.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::pagetable {
namespace {

// For errors: what granules were to be.
constexpr const char* kOthers = "to become another node's region";

std::uint64_t number(Serial serial) { return std::to_underlying(serial); }

std::string run_text(std::uint32_t first, std::uint32_t count) {
  return fmt::format("{} granules from granule {} on", count, first);
}

}  // namespace

Result<std::unique_ptr<AddressSpace>> AddressSpace::create(std::uintptr_t base, std::uint64_t bytes, Own own) {
  std::unique_ptr<AddressSpace> space(new AddressSpace(base, bytes));
  const std::size_t granules = bytes >> kGranuleShift;
  VMEM_ASSIGN(space->map_, LazyArray<std::atomic<std::uint32_t>>::create(granules));
  VMEM_ASSIGN(space->table_, LazyArray<Region*>::create(kMaxRegions));
  VMEM_ASSIGN(space->sharing_, SharedPages::create(granules));
  if (own == Own::nothing) return space;
  // Not by grant, which would touch all of the map.
  space->own_.insert(0, std::uint32_t(granules));
  space->free_.insert(0, std::uint32_t(granules));
  return space;
}

const Region* AddressSpace::region_within(std::uint32_t first, std::uint32_t count) const {
  for (std::uint32_t i = 0; i < count; ++i)
    if (const Region* const region = region_at(first + i)) return region;
  return nullptr;
}

Status AddressSpace::check_inside(const char* what, std::uint32_t first, std::uint32_t count) const {
  const std::uint64_t granules = bytes_ >> kGranuleShift;
  if (std::uint64_t{first} + count <= granules) return {};
  return fail(VMEM_ERROR_ADDRESS_SPACE,
              fmt::format("{} were {}, and the address space of {} has {}: give all nodes of the cluster the same "
                          "option space",
                          run_text(first, count), what, format_bytes(bytes_), granules));
}

Status AddressSpace::check_unoccupied(const char* what, std::uint32_t first, std::uint32_t count) const {
  const Region* const there = region_within(first, count);
  if (there == nullptr) return {};
  return fail(
      VMEM_ERROR_IN_USE,
      fmt::format("{} were {}, and the region with serial {:#x} has {}: free that region first", run_text(first, count),
                  what, number(there->serial), run_text(there->first.index, there->granules)));
}

// Regions that would take their granules along keep them in the part.
Status AddressSpace::grant(std::uint32_t first, std::uint32_t count) {
  constexpr const char* kWhat = "to be granted";
  VMEM_TRY(check_inside(kWhat, first, count));
  const std::uint32_t end = first + count;
  const auto leaves = [&](const Region* region) {
    if (region == nullptr || region->first.index < first || region->end_granule() > end) return false;
    return region->extent.keeps_range || is_retired(*region);
  };
  bool twice = count == 0, occupied = false;
  for (std::uint32_t at = first; at < end; ++at) {
    const Region* const region = region_at(at);
    if (leaves(region)) continue;
    twice |= own_.contains(at, 1);
    occupied |= region != nullptr;
  }
  if (twice)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{} were {}, and {} in an own part: grant one or more granules, each once",
                            run_text(first, count), kWhat, count == 0 ? "none are" : "some are already"));
  if (occupied) return check_unoccupied(kWhat, first, count);
  for (std::uint32_t at = first; at < end;) {
    Region* const region = region_at(at);
    std::uint32_t next = at + 1;
    if (region != nullptr) {
      if (is_retired(*region)) own_.insert(region->first.index, region->granules);
      region->extent.keeps_range = false;
      next = region->end_granule();
    } else {
      while (next < end && region_at(next) == nullptr) ++next;
      own_.insert(at, next - at);
      free_.insert(at, next - at);
    }
    at = next;
  }
  return {};
}

Status AddressSpace::withdraw(std::uint32_t first, std::uint32_t count) {
  constexpr const char* kWhat = "to be withdrawn";
  if (count == 0 || !own_.contains(first, count))
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{} were {}, and {} in an own part: withdraw one or more that were granted",
                            run_text(first, count), kWhat, count == 0 ? "none are" : "not all are"));
  VMEM_TRY(check_unoccupied(kWhat, first, count));
  own_.erase(first, count);
  free_.erase(first, count);
  return {};
}

void AddressSpace::retire(std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t at = first; at < first + count;) {
    Region* const region = region_at(at);
    if (region != nullptr) {
      if (owns(*region)) own_.erase(region->first.index, region->granules);
      at = region->end_granule();
      continue;
    }
    if (free_.contains(at, 1)) {
      free_.erase(at, 1);
      own_.erase(at, 1);
    }
    ++at;
  }
}

Result<Region*> AddressSpace::new_region() {
  if (!free_ids_.empty()) {
    const RegionId id = free_ids_.back();
    free_ids_.pop_back();
    return table_[id.value];
  }
  if (next_id_ == kMaxRegions)
    return fail(VMEM_ERROR_ADDRESS_SPACE, fmt::format("all {} regions are in use", kMaxRegions - 1));
  Region& region = regions_.emplace_back();
  region.id = {next_id_};
  table_[next_id_++] = &region;
  return &region;
}

void AddressSpace::begin(Region& region, const Shape& shape, std::unique_ptr<Page[]> pages) {
  region.serial = shape.serial;
  region.first = {shape.first};
  region.granules = shape.granules;
  region.page_shift = shape.page_shift;
  region.page_count = shape.granules >> shape.page_shift;
  region.whole = Span({shape.first}, shape.granules, Access::read);
  region.pages = std::move(pages);
  region.uses.clear();
  region.extent.released_pages = 0;
  region.unreadable = region.unwritable = region.page_count;
  region.attention = 0;
  region.devices = 0;
  region.extent.sharing.store(nullptr, std::memory_order_relaxed);
  region.extent.deaths_told.clear();
  for (std::uint32_t i = 0; i < shape.granules; ++i)
    map_[shape.first + i].store(region.id.value, std::memory_order_release);
}

Error AddressSpace::no_run(std::uint32_t granules) const {
  const bool alone = own_bytes() == bytes_;
  return {
      .status = VMEM_ERROR_ADDRESS_SPACE,
      .native = 0,
      .message = fmt::format("no run of {} MiB left in the {} GiB {}: {} MiB are free, the longest run is {} MiB; {}",
                             std::uint64_t{granules} * 2, own_bytes() >> 30,
                             alone ? "address space" : "of the joint address space that this node allocates in",
                             free_bytes() >> 20, largest_free_bytes() >> 20,
                             alone ? "raise --space" : "take more slices from the cluster, or free memory")};
}

Result<Region*> AddressSpace::add(std::uint32_t granules, std::uint32_t page_shift) {
  // First: std::bad_alloc changes nothing.
  auto pages = std::make_unique<Page[]>(granules >> page_shift);
  VMEM_ASSIGN(Region* const region, new_region());
  const auto first = free_.take(granules, 1u << page_shift, base_ >> kGranuleShift);
  if (!first) {
    free_ids_.push_back(region->id);
    return std::unexpected(no_run(granules));
  }
  const Shape shape{.first = *first, .granules = granules, .page_shift = page_shift, .serial = next_serial_};
  next_serial_ = Serial{number(next_serial_) + 1};
  begin(*region, shape, std::move(pages));
  return region;
}

Status AddressSpace::check_shape(const Shape& shape) const {
  const auto [first, granules, page_shift, serial] = shape;
  if (page_shift >= 32 || granules == 0 || (granules & ((1u << page_shift) - 1)) != 0)
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a region of {} granules in pages of 2^{} granules was to be "
                                                      "added: it has to be of one or more whole pages",
                                                      granules, page_shift));
  if (serial == Serial{} || serial >= kFirstOwnSerial || joint_serials_.contains(serial))
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("a region of another node was to be added with serial {:#x}, and {}: pass the serial that "
                            "the cluster gave it",
                            number(serial),
                            joint_serials_.contains(serial) ? "a region with that serial is in the address space"
                                                            : "serials of the cluster are from 1 to 2^63 - 1"));
  VMEM_TRY(check_inside(kOthers, first, granules));
  if (address_of(first) % (kGranuleBytes << page_shift) != 0)
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("a region with pages of {} was to be added at {:#x}, which is no multiple of that: give "
                            "all nodes of the cluster the same options base and page sizes",
                            format_bytes(kGranuleBytes << page_shift), address_of(first)));
  return {};
}

Result<Region*> AddressSpace::add_at(std::uint32_t first, std::uint32_t granules, std::uint32_t page_shift,
                                     Serial serial) {
  const Shape shape{.first = first, .granules = granules, .page_shift = page_shift, .serial = serial};
  VMEM_TRY(check_shape(shape));
  if (own_.overlaps(first, granules))
    return fail(VMEM_ERROR_IN_USE,
                fmt::format("{} were {}, and this node allocates in some of them: have only the holder of a slice "
                            "put regions there",
                            run_text(first, granules), kOthers));
  VMEM_TRY(check_unoccupied(kOthers, first, granules));
  // First: std::bad_alloc changes nothing.
  auto pages = std::make_unique<Page[]>(granules >> page_shift);
  VMEM_ASSIGN(Region* const region, new_region());
  joint_serials_.insert(serial);
  begin(*region, shape, std::move(pages));
  return region;
}

void AddressSpace::remove(Region& region) {
  for (std::uint32_t i = 0; i < region.granules; ++i) map_[region.first.index + i].store(0, std::memory_order_release);
  region.pages.reset();  // first: insert needs a little memory
  if (!owns(region))
    joint_serials_.erase(region.serial);
  else if (region.extent.keeps_range)
    own_.erase(region.first.index, region.granules);
  else
    free_.insert(region.first.index, region.granules);
  region.extent.keeps_range = false;
  region.state = RegionState::empty;
  free_ids_.push_back(region.id);
}

}  // namespace vmem::pagetable
