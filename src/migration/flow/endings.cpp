#include "migration/flow/endings.hpp"

#include <fmt/format.h>

#include <bit>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::migration {

using pagetable::Mapped;
using pagetable::RegionState;

namespace {

constexpr std::uint32_t kUnmapsPerStep = 64;  // about 1 ms of driver calls

}  // namespace

Status Endings::end(Region& region, Stamp last) {
  const auto held = [&] {
    return fail(VMEM_ERROR_IN_USE,
                fmt::format("the allocation at {:#x} has ranges that are still acquired; release them first",
                            parts_.core.config.space->address_of(region.first.index)));
  };
  // Checked first, so that a refused free stays invisible to other users of the region.
  if (parts_.core.config.threads->overlapping_holds(region.first.index, region.end_granule()).named != 0) return held();
  RegionState live = RegionState::live;
  if (!region.state.compare_exchange_strong(live, RegionState::ending, std::memory_order_seq_cst)) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} was freed already", parts_.core.config.space->address_of(region.first.index)));
  }
  if (!parts_.core.config.threads->barrier_all_threads() ||
      parts_.core.config.threads->overlapping_holds(region.first.index, region.end_granule()).named != 0) {
    region.state.store(RegionState::live, std::memory_order_seq_cst);
    return held();
  }
  parts_.uses.drain();
  parts_.uses.stamp_untracked(region);
  parts_.uses.stamp(region, last);
  parts_.core.tell_policies([&](Policy& policy) { policy.region_ends(region.id); });
  parts_.residency.region_ends(region);
  parts_.in_place.region_ended(region);
  regions_.push_back(&region);
  (region.read_only ? parts_.core.counters.file_mapped_bytes : parts_.core.counters.allocated_bytes) -=
      region.has_strangers() ? 0 : region.bytes;
  parts_.core.worked = true;
  return {};
}

void Endings::finish() {
  std::uint32_t budget = kUnmapsPerStep;
  std::erase_if(regions_, [&](Region* region) { return finish(*region, budget); });
}

bool Endings::finish(Region& region, std::uint32_t& budget) {
  for (const Stamp use : region.uses) {
    if (!parts_.uses.complete(use)) return false;
  }
  if (parts_.transfers.any_of(region)) return false;
  for (; region.extent.released_pages < region.page_count; ++region.extent.released_pages) {
    if (budget == 0) return false;
    Page& page = region.pages[region.extent.released_pages];
    if (page.mapped != Mapped::nothing) --budget;
    if (!release_page({&region, region.extent.released_pages})) return false;
    parts_.core.worked = true;
  }
  Device& device = parts_.devices.of(region);
  if (!region.read_only) {
    const std::uint64_t bytes = region.extent.committed_pages * region.page_bytes();
    device.committed_bytes -= bytes;
    parts_.lending.balance(device);
    parts_.core.counters.committed_bytes -= bytes;
    parts_.committer.counts(region.page_bytes()).of(region) -= region.extent.committed_pages;
  }
  parts_.core.counters.pages -= region.page_count;
  parts_.pending.forget(region);
  parts_.near.forget(region);
  parts_.promotions.forget(region);
  parts_.ahead.forget(region);
  parts_.below.forget(region);
  parts_.losses.forget(region);
  parts_.core.config.space->remove(region);
  parts_.committer.expect_slots();
  return true;
}

bool Endings::release_page(PageRef ref) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  if (page.cpu_users != 0 || parts_.transfers.running(page.wait) || parts_.transfers.busy_below(page)) return false;
  for (const Stamp use : page.uses) {
    if (!parts_.uses.complete(use)) return false;
  }
  if (page.mapped != Mapped::nothing) {
    if (auto unmapped = parts_.mapper.unmap(ref); !unmapped) {
      if (unmapped.error().status == VMEM_ERROR_DEVICE_LOST) parts_.core.lose_device(unmapped.error());
      if (std::has_single_bit(++unmap_failures_)) {
        VMEM_LOG_WARN("freeing the page at {:#x} will be tried again: {}", parts_.core.address_of(ref),
                      unmapped.error().message);
      }
      return false;
    }
    page.mapped = Mapped::nothing;
    parts_.residency.publish(ref, PageState(0));
  }
  parts_.contents.drop_standby(ref);
  if (page.has_frame()) device.hbm.give_back(page.frame, 0, nullptr);
  parts_.near.drop_ended(ref);
  if (const auto unread = parts_.losses.take_unread(ref); unread && unread->good)
    parts_.near[unread->good->near].tier->release(unread->good->slot);
  parts_.below.drop(ref);
  page.spilled.reset();
  parts_.contents.keep_no_longer(ref);
  if (page.pinned) device.pinned_bytes -= ref.bytes();
  page.leave_frame();
  page.pinned = false;
  parts_.core.note(ref, Happened::freed);
  return true;
}

}  // namespace vmem::migration
