// Regions: allocation, free, and how much can be allocated.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "migration/requests/room_later.hpp"

namespace vmem::migration {

using pagetable::kGranuleShift;
using pagetable::RegionState;

namespace {

// The share of a device's HBM that pages of small allocations may pin; further ones are evictable.
constexpr std::uint64_t kSlabShare = 4;

}  // namespace

std::optional<Status> AllocateRequest::advance(MoverParts& parts) {
  if (region == nullptr) {
    auto begun = begin(parts);
    if (!begun || !*begun || !parts.premap.worth_it(*region, region->extent.committed_pages)) return begun;
    id_ = region->id;
  }
  // The region may have been ended between two steps.
  if (region->id != id_ || region->state.load(std::memory_order_relaxed) != RegionState::live) return ended_error();
  if (!parts.premap.map_some(*region, mapped_, region->extent.committed_pages)) return std::nullopt;
  return Status{};
}

std::optional<Status> AllocateRequest::begin(MoverParts& parts) {
  Device& home = parts.devices[device];
  if (source) bytes = source->bytes();
  const auto place = source ? source->place() : std::nullopt;
  std::uint32_t shift = place    ? place->page_shift
                        : source ? parts.sizing.file_shift_for(home, bytes)
                                 : parts.sizing.shift_for(home, bytes, kind);
  std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
  std::uint64_t backed = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  if (backed < bytes || backed > parts.core.config.space->bytes()) {
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("{} asked for, the address space is {}; raise --space", format_bytes(bytes),
                            format_bytes(parts.core.config.space->bytes())));
  }
  const bool shared = kind == RegionKind::shared;  // committed when it is extended
  Status committed;
  const auto commit = [&] {
    return source ? parts.committer.commit_transit(home, page_bytes, *source, growth_)
                  : parts.committer.commit(home, backed, parts.committer.page_sizes_with(page_bytes), growth_);
  };
  if (source || !shared) committed = commit();
  if (!committed && growth_.waits) return std::nullopt;
  // The largest pages need the most room in transit and may waste the most: retry with smaller
  // ones.
  if (!committed && shift == PageSizing::kLargestShift && kind == RegionKind::declared && !place &&
      !parts.core.config.page_bytes) {
    page_bytes = pagetable::kGranuleBytes << --shift;
    backed = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    committed = commit();
    if (!committed && growth_.waits) return std::nullopt;
  }
  if (!committed) return error_or_wait(parts, patience_, std::move(committed).error());
  const std::uint64_t charged = source || shared ? 0 : backed;  // committed for it
  Status added;
  const bool had = ran_within_memory([&] { added = add_region(parts, backed, shift); });
  if (had && added) return added;
  undo(parts, charged);
  if (!had) throw std::bad_alloc();
  return error_or_wait(parts, patience_, std::move(added).error());
}

// Reverts what commit and add_region did before add_region failed.
void AllocateRequest::undo(MoverParts& parts, std::uint64_t charged) {
  Device& home = parts.devices[device];
  if (region != nullptr) {
    parts.core.tell_policies([&](Policy& policy) { policy.region_ends(region->id); });
    parts.below.remove_source(*region);
    parts.near.forget(*region);
    parts.core.config.space->remove(*std::exchange(region, nullptr));
  }
  home.committed_bytes -= charged;
  (void)ran_within_memory([&] { parts.lending.balance(home); });  // the next change repeats it
}

// REQUIRES: committed. The first part allocates, and undo can revert it; the second cannot fail.
Status AllocateRequest::add_region(MoverParts& parts, std::uint64_t backed, std::uint32_t shift) {
  Device& home = parts.devices[device];
  const std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
  const auto pages = std::uint32_t(backed / page_bytes);
  const auto granules = std::uint32_t(backed >> kGranuleShift);
  const auto place = source ? source->place() : std::nullopt;
  pagetable::AddressSpace& space = *parts.core.config.space;
  VMEM_ASSIGN(region,
              place ? space.add_at(place->first_granule, granules, shift, place->serial) : space.add(granules, shift));
  if (source) {
    VMEM_ASSIGN(const tiers::SlotId slots, source->lay_out(page_bytes, pages));
    parts.below.add_source(*region, source, slots);
    if (place) parts.near.keep_copies_of(*region);
  }
  const bool slab = kind == RegionKind::slab, shared = kind == RegionKind::shared;
  const bool undeclared = shared || kind == RegionKind::undeclared;
  const bool distant = source != nullptr || parts.core.config.spill != nullptr;
  RegionShape begins{region->id, region->page_count, page_bytes, device, slab, undeclared, shared, distant};
  parts.core.config.policy->region_begins(begins);
  begins.device = 0;  // the one backing tier
  if (parts.core.config.spill_policy) parts.core.config.spill_policy->region_begins(begins);
  Committer::PageCounts& counts = parts.committer.counts(page_bytes);
  parts.residency.make_room_for_region();
  region->extent.begun_pages = shared ? 0 : region->page_count;
  region->extent.committed_pages = source || shared ? 0 : region->page_count;
  if (shared) region->unreadable = region->unwritable = 0;

  region->read_only = source != nullptr;
  region->freeze = pagetable::Freeze::none;
  region->head_bytes = source ? std::uint32_t(source->head_bytes()) : 0;
  region->bytes = (shared ? backed : bytes) - region->head_bytes;
  region->device = device;
  region->slab = slab;
  region->undeclared = undeclared;
  region->launched = false;
  region->dead.store(false, std::memory_order_relaxed);
  region->life.store(0, std::memory_order_relaxed);
  region->tells_changes.store(false, std::memory_order_relaxed);
  region->extent.deaths_told.assign(1, 0);
  if (shared) parts.core.config.space->sharing().begin_region(*region);
  region->mapping_devices = 1u << device;
  region->devices.store(region->mapping_devices, std::memory_order_relaxed);
  parts.residency.region_begins(*region);
  if (source) {
    parts.core.counters.file_mapped_bytes += region->bytes;
  } else {
    counts.of(*region) += region->extent.committed_pages;
    parts.core.counters.allocated_bytes += region->has_strangers() ? 0 : bytes;
    parts.core.counters.committed_bytes += region->extent.committed_pages * page_bytes;
  }
  parts.core.counters.pages += region->page_count;
  (void)ran_within_memory([&] { parts.committer.expect_slots(); });  // slots can be created later
  if (slab && home.pinned_bytes + backed <= home.config.hbm_bytes / kSlabShare) {
    home.pinned_bytes += backed;
    for (std::uint32_t i = 0; i < region->page_count; ++i) region->pages[i].pinned = true;
  }
  region->state.store(RegionState::live, std::memory_order_seq_cst);
  return Status{};
}

// Assumes the largest page size that an allocation here can get, which needs the most in transit.
std::optional<Status> CapacityRequest::advance(MoverParts& parts) {
  const Device& asked = parts.devices[device];
  const std::uint64_t page_bytes = parts.core.config.page_bytes.value_or(
      std::min(pagetable::kGranuleBytes << PageSizing::kLargestShift,
               std::bit_floor(parts.sizing.most_page_bytes(asked.config.hbm_bytes))));
  const auto [total, free] = capacity(parts.committer.memories(Committer::Room::obtainable), std::size_t(device),
                                      parts.committer.page_sizes_with(std::max(page_bytes, pagetable::kGranuleBytes)));
  total_bytes = total;
  free_bytes = free;
  return Status{};
}

std::optional<Status> FreeRequest::advance(MoverParts& parts) {
  if (region->first.index != first_granule) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} was freed already", parts.core.config.space->address_of(first_granule)));
  }
  const pagetable::AddressSpace& space = *parts.core.config.space;
  if (!joint && (region->frozen() || region->serial < pagetable::kFirstOwnSerial)) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("the memory at {:#x} is a published region, which other nodes may have open: end it by "
                            "vmem_close",
                            space.address_of(first_granule)));
  }
  return parts.endings.end(*region, last);
}

}  // namespace vmem::migration
