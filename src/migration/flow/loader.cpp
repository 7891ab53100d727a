#include "migration/flow/loader.hpp"

#include <utility>

#include "base/log.hpp"
#include "migration/place/below.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;
using tiers::Direction;

Result<std::uint64_t> Loader::submit(PageRef ref, Direction direction, std::uint32_t frame, std::uint64_t after,
                                     Watch watch) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  tiers::Transfer transfer = transfer_of(ref, direction);
  transfer.slot = page.slot;
  transfer.frame = device.hbm.frame(frame).window;
  transfer.after = {parts_.transfers.event_of(after), parts_.transfers.event_of(page.store)};
  transfer.watch = watch == Watch::yes && direction == Direction::load;
  transfer.if_changed = watch == Watch::yes && direction == Direction::store;
  InFlight entry = in_flight(ref, direction, InFlight::Kind::frame, parts_.core.now_us());
  entry.from = {page.near, page.slot};
  Transfers::Room room = Transfers::reserve(entry);
  VMEM_TRY(parts_.near.of(page).tier->submit({&transfer, 1}));
  parts_.transfers.enter(std::move(room), transfer);
  const bool lent = page.near != 0;
  if (std::uint64_t* const copied = device.host_copies(page.near, direction, transfer.if_changed))
    *copied += ref.bytes();
  parts_.core.note(ref, direction == Direction::load ? Happened::loaded : Happened::stored);
  if (direction == Direction::load) {
    device.loads_bytes += ref.bytes();
    parts_.core.counters.migrated_in_bytes += ref.bytes();
    parts_.core.counters.peer_in_bytes += lent ? ref.bytes() : 0;
  } else {
    device.stores_bytes += ref.bytes();
    if (!transfer.if_changed) parts_.core.counters.migrated_out_bytes += ref.bytes();
    if (!transfer.if_changed && lent) parts_.core.counters.peer_out_bytes += ref.bytes();
  }
  parts_.core.worked = true;
  return transfer.id;
}

Status Loader::load(PageRef ref, std::uint32_t frame, Access access, OldBytes old, Cause cause) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  std::uint64_t wait = device.hbm.frame(frame).busy_until;
  // Undeclared writes: a page last found written counts as written, but is compared occasionally.
  if (page.writes_believed != 0 && page.version != 0) {
    --page.writes_believed;
    access = Access::write;
  }
  if (page.version != 0 && old == OldBytes::fetch) {
    // A fingerprint known from an earlier load makes a watch unnecessary.
    const bool watch =
        access == Access::read && !parts_.mapper.write_protected(*ref.region) && !parts_.fingerprints.comparable(ref);
    auto submitted = submit(ref, Direction::load, frame, wait, watch ? Watch::yes : Watch::no);
    if (!submitted) {
      device.hbm.give_back(frame, wait, nullptr);
      return std::unexpected(std::move(submitted).error());
    }
    wait = *submitted;
  }
  // The copy uses the frame's window, so mapping and copying overlap.
  const std::uint64_t began_us = parts_.core.now_us();
  if (auto mapped = parts_.mapper.map(ref, device.hbm.frame(frame).handle, access); !mapped) {
    device.hbm.give_back(frame, wait, nullptr);
    return mapped;
  }
  learn_what_yields(device, parts_.core.now_us() - began_us);
  page.enter_frame(frame);
  expose(ref, Mapped::frame, access, wait, cause);
  parts_.near.offer_slot(ref);
  parts_.core.config.policy->page_arrived(ref.id(), cause);
  parts_.near.left_host_memory(ref);
  if (cause == Cause::prefetch) parts_.core.counters.prefetched_bytes += ref.bytes();
  parts_.in_place.fetched(ref);
  return {};
}

// A page was made accessible in `took_us`.
void Loader::learn_what_yields(Device& device, std::uint64_t took_us) const {
  tiers::YieldingTier* const host = parts_.core.abilities.backing.yielding;
  if (host == nullptr) return;
  const auto yields = device.held_up_calls.took(took_us, device.host_loads_bytes != 0, device.host_stores_bytes != 0);
  if (!yields) return;
  host->make_way(device.index, *yields);
  VMEM_LOG_INFO("device {}: copies {} host memory delay page table updates; from now on they come in pieces",
                device.config.ordinal, *yields == Direction::load ? "from" : "to");
}

Status Loader::remap(PageRef ref, Access access, Cause cause) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  VMEM_TRY(parts_.mapper.map(ref, device.hbm.frame(page.frame).handle, access));
  if (page.standby()) {
    device.hbm.retake(page.frame);
    page.take_frame_back();
    parts_.core.config.policy->page_arrived(ref.id(), Cause::use);
    parts_.near.left_host_memory(ref);
    ++parts_.core.counters.eviction_cancels;
  }
  // Undeclared pages may be written whatever the access; a store in flight must not see the write.
  const bool may_write = access == Access::write || ref.region->undeclared || ref.region->slab;
  expose(ref, Mapped::frame, access, may_write ? store_from_frame(page) : 0, cause);
  if (cause == Cause::prefetch) parts_.core.counters.prefetched_bytes += ref.bytes();
  // Invalidates a comparison in flight: it may miss writes from now on.
  if (parts_.fingerprints.comparing(page)) parts_.transfers.at(page.store).version = 0;
  parts_.near.offer_slot(ref);
  return {};
}

void Loader::expose(PageRef ref, Mapped mapped, Access access, std::uint64_t wait, Cause cause) {
  Page& page = ref.page();
  page.mapped = mapped;
  parts_.core.note(ref, mapped == Mapped::frame ? Happened::mapped_hbm
                        : page.near == 0        ? Happened::mapped_host
                                                : Happened::mapped_peer);
  page.prefetched = cause == Cause::prefetch;
  if (page.spilled != nullptr) {
    page.spilled->wanted = false;
    if (mapped == Mapped::slot) Below::distrust(page);
  }
  if (mapped == Mapped::slot) {
    parts_.near.came_to_host_memory(ref);
    parts_.near.copy_used(ref);
  }
  // A page never written has nothing to be compared with at eviction: the mapping counts as a
  // write.
  if (access == Access::write || (page.version == 0 && !parts_.mapper.write_protected(*ref.region))) {
    ++page.version;
    if (mapped == Mapped::slot) page.slot_version = page.version;
  }
  const std::uint32_t flags = (cause == Cause::prefetch ? PageState::kNotify : 0) | parts_.pending.wait_for(ref, wait);
  if (mapped == Mapped::slot) parts_.uses.start_tracking();
  parts_.residency.publish(ref, PageState(0).with(access).set(flags));
}

std::uint64_t Loader::store_from_frame(const Page& page) { return page.mapped == Mapped::slot ? 0 : page.store; }

}  // namespace vmem::migration
