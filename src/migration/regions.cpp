// Regions from allocation to the end of their last use, and what they commit.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kGranuleShift;
using pagetable::kNoFrame;
using pagetable::Mapped;
using pagetable::RegionState;

namespace {

constexpr std::uint32_t kUnmapsPerStep = 64;  // about 1 ms of driver calls
// HBM that small allocations may hold for good, as a share of the budget; beyond it their pages are evicted like others.
constexpr std::uint64_t kSharedShare = 4;
constexpr std::uint64_t kFilePagesInHost = 16;  // at least, of mapped files
// Of pages whose size is chosen here, HBM and host memory hold as many at least: some come and some
// go while others are used.
constexpr std::uint64_t kPagesInHbm = 16;
constexpr std::uint64_t kPagesInHost = 8;

}  // namespace

std::optional<Status> AllocateRequest::advance(Mover& mover) {
  if (region == nullptr) {
    auto begun = begin(mover);
    if (!begun || !*begun || !mover.worth_mapping(*region)) return begun;
    id_ = region->id;
  }
  // Everything may have been ended between two steps.
  if (region->id != id_ || region->state.load(std::memory_order_relaxed) != RegionState::live)
    return Mover::ended_error();
  if (!mover.map_some(*region, mapped_)) return std::nullopt;
  return Status{};
}

std::optional<Status> AllocateRequest::begin(Mover& mover) {
  Mover::DeviceState& home = *mover.devices_[std::size_t(device)];
  if (source) bytes = source->bytes();
  std::uint32_t shift =
      source ? mover.file_page_shift(home, bytes) : mover.page_shift_for(home, bytes, shared, undeclared);
  std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
  std::uint64_t backed = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  if (backed < bytes || backed > mover.config_.space->bytes()) {
    return fail(VMEM_ERROR_ADDRESS_SPACE, fmt::format("{} asked for, the address space is {}; raise --space",
                                                      format_bytes(bytes), format_bytes(mover.config_.space->bytes())));
  }
  auto committed = source ? mover.commit_transit(home, page_bytes, *source)
                          : mover.commit(home, backed, mover.page_sizes_with(page_bytes));
  // The largest pages need the most room in transit, and may leave the most over.
  if (!committed && shift == Mover::kLargestShift && !undeclared && !mover.config_.page_bytes) {
    page_bytes = pagetable::kGranuleBytes << --shift;
    backed = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    committed = source ? mover.commit_transit(home, page_bytes, *source)
                       : mover.commit(home, backed, mover.page_sizes_with(page_bytes));
  }
  if (!committed) return wait_or(mover, std::move(committed).error());
  const std::uint64_t charged = source ? 0 : backed;  // for its place in memory
  Status added;
  const bool had = had_memory([&] { added = add_region(mover, backed, shift); });
  if (had && added) return added;
  undo(mover, charged);
  if (!had) throw std::bad_alloc();
  return wait_or(mover, std::move(added).error());
}

// What add_region had done when it failed.
void AllocateRequest::undo(Mover& mover, std::uint64_t charged) {
  Mover::DeviceState& home = *mover.devices_[std::size_t(device)];
  if (region != nullptr) {
    mover.tell_policies([&](Policy& policy) { policy.region_ends(region->id); });
    mover.sources_.erase(region);
    mover.config_.space->remove(*std::exchange(region, nullptr));
  }
  home.committed_bytes -= charged;
  (void)had_memory([&] { mover.balance_lending(home); });  // the next change does it
}

// What ending regions hold comes back without anybody's help, as soon as the work that uses it ends.
std::optional<Status> AllocateRequest::wait_or(Mover& mover, Error error) {
  if (mover.ending_.empty()) return std::unexpected(std::move(error));
  if (!patience_.over(mover)) return std::nullopt;
  error.message += "; memory that was freed is still used by unfinished work, and was waited for";
  return std::unexpected(std::move(error));
}

// REQUIRES: committed. Allocates in its first part, which undo can take back; the second cannot fail.
Status AllocateRequest::add_region(Mover& mover, std::uint64_t backed, std::uint32_t shift) {
  Mover::DeviceState& home = *mover.devices_[std::size_t(device)];
  const std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
  const std::uint64_t charged = source ? 0 : backed;
  const auto pages = std::uint32_t(backed / page_bytes);
  VMEM_ASSIGN(region, mover.config_.space->add(std::uint32_t(backed >> kGranuleShift), shift));
  if (source) {
    VMEM_ASSIGN(const tiers::SlotId slots, source->lay_out(page_bytes, pages));
    mover.read_from(*region, source, slots);
  }
  RegionShape begins{region->id, region->page_count, page_bytes, device, shared, undeclared};
  mover.config_.policy->region_begins(begins);
  begins.device = 0;  // the one backing tier
  if (mover.config_.spill_policy) mover.config_.spill_policy->region_begins(begins);
  Mover::PageCounts& counts = mover.page_counts_[page_bytes];
  mover.make_room_for_region();

  region->read_only = source != nullptr;
  region->head_bytes = source ? std::uint32_t(source->head_bytes()) : 0;
  region->bytes = bytes - region->head_bytes;
  region->device = device;
  region->shared = shared;
  region->undeclared = undeclared;
  region->launched = false;
  region->dead.store(false, std::memory_order_relaxed);
  region->life.store(0, std::memory_order_relaxed);
  region->tells_changes.store(false, std::memory_order_relaxed);
  region->life_told = 0;
  region->mapping_devices = 1u << device;
  region->devices.store(region->mapping_devices, std::memory_order_relaxed);
  mover.region_begins(*region);
  if (source) {
    mover.counters_.file_mapped_bytes += region->bytes;
  } else {
    counts.of(*region) += region->page_count;
    mover.counters_.allocated_bytes += shared ? 0 : bytes;
    mover.counters_.committed_bytes += charged;
  }
  mover.counters_.pages += region->page_count;
  (void)had_memory([&] { mover.expect_slots(); });  // what is made ahead can be made later
  if (shared && home.pinned_bytes + backed <= home.config.hbm_bytes / kSharedShare) {
    home.pinned_bytes += backed;
    for (std::uint32_t i = 0; i < region->page_count; ++i) region->pages[i].pinned = true;
  }
  region->state.store(RegionState::live, std::memory_order_seq_cst);
  return Status{};
}

// Pages of files need a place while they come through host memory, and none else.
Status Mover::commit_transit(DeviceState& device, std::uint64_t page_bytes, const tiers::PageSource& source) {
  const std::uint64_t host = config_.backing->usage().budget_bytes;
  if (page_bytes > host) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} would be read in pages of {}, and host memory has {}; raise --host or lower --page",
                            source.name(), format_bytes(page_bytes), format_bytes(host)));
  }
  PageSizes pages = page_sizes();
  pages.wanted = page_bytes;
  pages.in_files = std::max(pages.in_files, page_bytes);
  auto committed = commit(device, 0, pages);
  if (committed) return {};
  Error error = std::move(committed).error();
  error.message =
      fmt::format("to read {}, pages must have a way through host memory: {}", source.name(), error.message);
  return std::unexpected(std::move(error));
}

// As for allocations, and small enough for several to be on their way at once.
std::uint32_t Mover::file_page_shift(const DeviceState& device, std::uint64_t bytes) const {
  std::uint32_t shift = page_shift_for(device, bytes, false, false);
  if (config_.page_bytes) return shift;
  const std::uint64_t host = config_.backing->usage().budget_bytes;
  while (shift > 0 && (pagetable::kGranuleBytes << shift) > host / kFilePagesInHost) --shift;
  return shift;
}

Memories Mover::memories() const {
  Memories all{.host_bytes = config_.backing->usage().budget_bytes};
  if (config_.spill != nullptr) all.below = config_.spill->places();
  for (const LentMemory& each : config_.lent) all.lent_bytes.push_back(lent_for_certain(each));
  for (const auto& device : devices_) {
    std::uint64_t lenders = 0;
    for (const std::uint8_t lender : device->config.lenders) lenders |= std::uint64_t{1} << lender;
    all.devices.push_back(
        {.hbm_bytes = hbm_in_all(*device), .committed_bytes = device->committed_bytes, .lenders = lenders});
  }
  return all;
}

PageSizes Mover::page_sizes() const {
  PageSizes sizes{.in_files = largest_file_page()};
  for (const auto& [bytes, pages] : page_counts_) {
    if (pages.declared + pages.undeclared != 0) sizes.add(bytes);
  }
  if (sizes.largest == 0) sizes.add(pagetable::kGranuleBytes);
  return sizes;
}

PageSizes Mover::page_sizes_with(std::uint64_t wanted) const {
  PageSizes sizes = page_sizes();
  sizes.wanted = wanted;
  sizes.add(wanted);
  return sizes;
}

Status Mover::commit(DeviceState& device, std::uint64_t bytes, const PageSizes& pages) {
  device.committed_bytes += bytes;  // what others lend for certain depends on it
  Memories all;
  std::optional<Shortfall> missing;
  const bool had = had_memory([&] {
    all = memories();
    missing = shortfall(all, pages);
    if (!missing) balance_lending(device);
  });
  if (had && !missing) return {};
  device.committed_bytes -= bytes;
  if (!had) throw std::bad_alloc();
  return commit_error(device, bytes, pages, all, *missing);
}

Status Mover::commit_error(const DeviceState& device, std::uint64_t bytes, const PageSizes& pages, const Memories& all,
                           const Shortfall& missing) const {
  const std::uint64_t hbm = hbm_in_all(device);
  const bool lent = !all.lent_bytes.empty(), below = config_.spill != nullptr;
  const std::uint64_t below_bytes = std::accumulate(all.below.begin(), all.below.end(), std::uint64_t{0});
  const bool nodes = below && config_.spill->info().name.contains("remote");
  return fail(
      VMEM_ERROR_OUT_OF_MEMORY,
      fmt::format(
          "{} asked for on device {}, where {} are allocated and HBM can hold {} of {}: {} would have to fit into "
          "{}host memory{}, which can hold {} of {} (pages in transit take the rest); free something, or raise --hbm, "
          "--host{}{}",
          format_bytes(bytes), device.config.ordinal, format_bytes(device.committed_bytes),
          format_bytes(usable_hbm_bytes(hbm, pages)), format_bytes(hbm), format_bytes(missing.overflow),
          lent ? fmt::format("what other GPUs lend, {}, and ", format_bytes(missing.lent)) : std::string(),
          below ? fmt::format(" ({}) and {} ({})", format_bytes(all.host_bytes), config_.spill->info().name,
                              format_bytes(below_bytes))
                : std::string(),
          format_bytes(missing.host_and_below), format_bytes(all.host_bytes + below_bytes), lent ? ", --peers" : "",
          nodes ? ", --borrow or --nvme, or name another node with --remote" : " or --nvme"));
}

// What a device has when nothing of it is lent, but for what other processes keep.
std::uint64_t Mover::hbm_in_all(const DeviceState& device) const {
  for (const LentOut& out : config_.lent_out) {
    if (devices_[std::size_t(out.lender)].get() != &device) continue;
    return device.config.hbm_bytes - std::min(device.config.hbm_bytes, out.held().overdue_bytes);
  }
  const bool lends = std::ranges::any_of(config_.lent, [&](const LentMemory& lent) {
    return lent.lender && devices_[std::size_t(*lent.lender)].get() == &device;
  });
  return lends ? device.config.hbm_bytes : device.hbm.budget_bytes();
}

std::uint64_t Mover::most_page_bytes(std::uint64_t hbm_bytes) const {
  return std::min(hbm_bytes / kPagesInHbm, config_.backing->usage().budget_bytes / kPagesInHost);
}

std::uint32_t Mover::page_shift_for(const DeviceState& device, std::uint64_t bytes, bool shared,
                                    bool undeclared) const {
  if (shared) return 0;
  if (config_.page_bytes) return std::uint32_t(std::countr_zero(*config_.page_bytes >> kGranuleShift));
  const std::uint64_t most = most_page_bytes(undeclared ? device.config.hbm_bytes : device.hbm.budget_bytes());
  // An undeclared region is used as a whole: the fewest pages that waste at most an eighth of it.
  if (undeclared) {
    for (std::uint32_t shift = Mover::kLargestShift; shift > 0; --shift) {
      const std::uint64_t page_bytes = pagetable::kGranuleBytes << shift;
      const std::uint64_t wasted = -bytes & (page_bytes - 1);
      if (wasted <= bytes / 8 && page_bytes <= most) return shift;
    }
    return 0;
  }
  // A remap costs about 45 µs whatever the size (32 MiB: 7 % of its copy, 2 MiB: all of it; from a peer's HBM, seven times as fast, 32 MiB: half), so
  // large regions get large pages; eight pages a region at least, so that a part of it can stay.
  std::uint32_t shift = 0;
  for (const std::uint32_t larger : {2u, 4u, kLargestShift}) {
    if (larger == kLargestShift && device.config.lenders.empty()) continue;
    const std::uint64_t page_bytes = pagetable::kGranuleBytes << larger;
    if (bytes / page_bytes >= 8 && page_bytes <= most) shift = larger;
  }
  return shift;
}

// For the largest pages that an allocation may get here, which have most in transit.
std::optional<Status> CapacityRequest::advance(Mover& mover) {
  const Mover::DeviceState& asked = *mover.devices_[std::size_t(device)];
  const std::uint64_t page_bytes = mover.config_.page_bytes.value_or(std::min(
      pagetable::kGranuleBytes << Mover::kLargestShift, std::bit_floor(mover.most_page_bytes(asked.config.hbm_bytes))));
  const auto [total, free] = capacity(mover.memories(), std::size_t(device),
                                      mover.page_sizes_with(std::max(page_bytes, pagetable::kGranuleBytes)));
  total_bytes = total;
  free_bytes = free;
  return Status{};
}

// A size that takes up itself: what it is rounded up to may be worth larger pages, and these more.
std::uint64_t Mover::undeclared_bytes(int device, std::uint64_t bytes) const {
  for (;;) {
    const std::uint64_t page_bytes = pagetable::kGranuleBytes
                                     << page_shift_for(*devices_[std::size_t(device)], bytes, false, true);
    const std::uint64_t wasted = -bytes & (page_bytes - 1);
    if (wasted == 0) return bytes;
    bytes += wasted;
  }
}

// Slots are made ahead once eviction is to be expected: as many as there are pages, so that clean pages keep their copy. Programs that
// do not call vmem write most of their pages, so their slots are those that the overflow needs: making one keeps the driver from
// anything else for as long as its memory takes to clear.
void Mover::expect_slots() {
  constexpr std::uint64_t kGranule = pagetable::kGranuleBytes;
  constexpr PageSizes smallest{.wanted = kGranule, .smallest = kGranule, .largest = kGranule};
  std::uint64_t committed = 0, hbm = 0, lent = 0;
  for (const auto& device : devices_) {
    committed += device->committed_bytes;
    hbm += usable_hbm_bytes(device->hbm.budget_bytes(), smallest);
  }
  for (const LentMemory& each : config_.lent) lent += lent_for_certain(each);
  const double overflow = committed > hbm ? double(committed - hbm) / double(committed) : 0;
  for (const auto& [page_bytes, pages] : page_counts_) {
    const auto leaving = std::uint64_t(std::ceil(overflow * double(pages.undeclared)));
    const std::uint64_t slots = overflow == 0 ? 0 : pages.declared + leaving;
    for (std::size_t near = 1; near < near_.size(); ++near) near_[near].tier->expect(page_bytes, slots);
    config_.backing->expect(page_bytes, slots - std::min(slots, lent / page_bytes));
  }
}

std::optional<Status> FreeRequest::advance(Mover& mover) {
  if (region->first.index != first_granule) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} was freed already", mover.config_.space->address_of(first_granule)));
  }
  return mover.end_region(*region, last);
}

Status Mover::end_region(Region& region, Stamp last) {
  const auto held = [&] {
    return fail(VMEM_ERROR_IN_USE,
                fmt::format("the allocation at {:#x} has ranges that are still acquired; release them first",
                            config_.space->address_of(region.first.index)));
  };
  // Looked at first, so that a refused free is not seen by others who use the region.
  if (config_.threads->overlapping_holds(region.first.index, region.end_granule()).named != 0) return held();
  RegionState live = RegionState::live;
  if (!region.state.compare_exchange_strong(live, RegionState::ending, std::memory_order_seq_cst)) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} was freed already", config_.space->address_of(region.first.index)));
  }
  if (!config_.threads->synchronize() ||
      config_.threads->overlapping_holds(region.first.index, region.end_granule()).named != 0) {
    region.state.store(RegionState::live, std::memory_order_seq_cst);
    return held();
  }
  drain_uses();
  stamp_untracked(region);
  stamp(region, last);
  tell_policies([&](Policy& policy) { policy.region_ends(region.id); });
  region_ends(region);
  ending_.push_back(&region);
  (region.read_only ? counters_.file_mapped_bytes : counters_.allocated_bytes) -= region.shared ? 0 : region.bytes;
  worked_ = true;
  return {};
}

void Mover::finish_endings() {
  std::uint32_t budget = kUnmapsPerStep;
  std::erase_if(ending_, [&](Region* region) { return finish_ending(*region, budget); });
}

bool Mover::finish_ending(Region& region, std::uint32_t& budget) {
  for (const Stamp use : region.uses) {
    if (!complete(use)) return false;
  }
  if (has_transfers(region)) return false;
  for (; region.end_cursor < region.page_count; ++region.end_cursor) {
    if (budget == 0) return false;
    Page& page = region.pages[region.end_cursor];
    if (page.mapped != Mapped::nothing) --budget;
    if (!release_page({&region, region.end_cursor})) return false;
    worked_ = true;
  }
  DeviceState& device = device_of(region);
  if (!region.read_only) {
    const std::uint64_t bytes = region.page_count * region.page_bytes();
    device.committed_bytes -= bytes;
    balance_lending(device);
    counters_.committed_bytes -= bytes;
    page_counts_[region.page_bytes()].of(region) -= region.page_count;
  }
  counters_.pages -= region.page_count;
  const auto of_region = [&](const PageRef& ref) { return ref.region == &region; };
  std::erase_if(pending_, of_region);
  for (auto& retained : retained_) std::erase_if(retained, of_region);
  std::erase_if(promotions_, of_region);
  std::erase_if(asked_ahead_, of_region);
  std::erase_if(spilled_, of_region);
  std::erase_if(borrowed_, of_region);
  const PageId first{region.id, 0}, behind{{region.id.value + 1}, 0};
  losses_.erase(losses_.lower_bound(first), losses_.lower_bound(behind));
  load_failures_.erase(load_failures_.lower_bound(first), load_failures_.lower_bound(behind));
  sources_.erase(&region);
  config_.space->remove(region);
  expect_slots();
  return true;
}

// Also those that no page waits for any more: loads whose mapping failed.
bool Mover::has_transfers(const Region& region) const {
  return std::ranges::any_of(in_flight_, [&](const auto& each) { return each.second.region == &region; });
}

// For requests whose caller holds nothing: the region may have been freed, and its place reused, since the caller saw it.
Status Mover::check_live(const PageRun& run) {
  if (PageRef{run.region, run.first}.live() && run.count <= run.region->page_count - run.first) return {};
  return fail(VMEM_ERROR_INVALID_POINTER, "the allocation was freed by another thread meanwhile");
}

bool Mover::release_page(PageRef ref) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  if (page.cpu_users != 0 || running(page.wait) || spilling(page)) return false;
  for (const Stamp use : page.uses) {
    if (!complete(use)) return false;
  }
  if (page.mapped != Mapped::nothing) {
    if (auto unmapped = unmap_at(ref); !unmapped) {
      if (unmapped.error().status == VMEM_ERROR_DEVICE_LOST) lose_device(unmapped.error());
      if (std::has_single_bit(++unmap_failures_)) {
        VMEM_LOG_WARN("freeing the page at {:#x} will be tried again: {}", address_of(ref), unmapped.error().message);
      }
      return false;
    }
    page.mapped = Mapped::nothing;
    publish(ref, PageState(0));
  }
  drop_standby(ref);
  if (page.frame != kNoFrame) device.hbm.give_back(page.frame, 0, nullptr);
  if (page.slot != kNoFrame) near_of(page).tier->release(page.slot);
  if (const auto unread = unread_.extract(ref.id()); unread && unread.mapped().good)
    near_[unread.mapped().good->near].tier->release(unread.mapped().good->slot);
  if (ref.region->read_only) std::erase_if(borrowed_, [&](PageRef each) { return &each.page() == &page; });
  drop_spilled(ref);
  page.spilled.reset();
  keep_no_longer(ref);
  if (page.pinned) device.pinned_bytes -= ref.bytes();
  page.frame = page.slot = kNoFrame;
  page.pinned = false;
  note(ref, Happened::freed);
  return true;
}

Error Mover::full_error(const char* what, std::uint64_t bytes) const {
  std::string hbm;
  for (const auto& device : devices_) {
    hbm += fmt::format("HBM of device {}: {} of {}; ", device->config.ordinal, format_bytes(device->hbm.used_bytes()),
                       format_bytes(device->hbm.budget_bytes()));
  }
  std::vector<const tiers::Tier*> others;
  for (std::size_t near = 1; near < near_.size(); ++near) others.push_back(near_[near].tier);
  others.push_back(config_.backing);
  if (config_.spill != nullptr) others.push_back(config_.spill);
  std::string below;
  for (const tiers::Tier* tier : others) {
    const tiers::TierUsage usage = tier->usage();
    below += fmt::format("{}{}: {} of {}", below.empty() ? "" : "; ", tier->info().name, format_bytes(usage.used_bytes),
                         format_bytes(usage.budget_bytes));
  }
  if (!spill_error_.empty()) below += fmt::format("; the last page that could not be stored below: {}", spill_error_);
  return {VMEM_ERROR_OUT_OF_MEMORY, 0,
          fmt::format("no memory for {} of {}: {}{}; release or free something, or raise --hbm, --host or --nvme", what,
                      format_bytes(bytes), hbm, below)};
}

}  // namespace vmem::migration
