#include "migration/flow/lending.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "migration/flow/in_flight_limits.hpp"
#include "migration/place/lendable.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

constexpr std::size_t kLookedAtPerStep = 4096;  // pages

}  // namespace

// Memory not yet returned does not count as the device's own.
template <class Held, class SetLimit>
void Lending::split_budget(Device& device, std::uint64_t wanted, Held&& held, SetLimit&& set_limit) {
  const std::uint64_t total = device.config.hbm_bytes;
  device.hbm.set_budget(total - wanted);
  // The device's free frames reduce what it can lend; memory that it cannot release is not lent.
  if (auto shrunk = device.hbm.shrink(); !shrunk && shrunk.error().status == VMEM_ERROR_DEVICE_LOST)
    return parts_.core.lose_device(shrunk.error());
  const std::uint64_t lent_bytes = std::min(wanted, total - std::min(total, device.hbm.created_bytes()));
  set_limit(lent_bytes);
  const std::uint64_t away = std::max<std::uint64_t>(lent_bytes, held());
  device.hbm.set_budget(total - std::min(total, away));
}

void Lending::balance(Device& device) {
  for (const PeerTier& lent : parts_.core.config.peer_tiers) {
    if (!lent.lender || *lent.lender != device.index) continue;
    split_budget(
        device, lendable(parts_.devices, lent), [&] { return lent.tier->usage().held_bytes; },
        [&](std::uint64_t bytes) {
          if (lent.tier->usage().budget_bytes != bytes) lent.set_budget(bytes);
        });
  }
  for (const Loan& out : parts_.core.config.loans) {
    if (out.lender != device.index) continue;
    split_budget(device, left_to_lend(device, out.most_bytes), [&] { return out.held().bytes; }, out.set_limit);
  }
}

void Lending::return_lent() {
  waits_ = false;
  for (std::size_t near = 1; near < parts_.near.count(); ++near) {
    const tiers::TierUsage usage = parts_.near[near].tier->usage();
    if (usage.used_bytes > usage.budget_bytes) return_from(near, usage.used_bytes - usage.budget_bytes);
    const PeerTier& lent = parts_.core.config.peer_tiers[near - 1];
    if (lent.lender) balance(parts_.devices[*lent.lender]);
  }
  for (const Loan& out : parts_.core.config.loans) balance(parts_.devices[out.lender]);
}

void Lending::return_from(std::size_t near, std::uint64_t bytes) {
  waits_ = true;
  std::uint64_t left =
      bytes - std::min(bytes, parts_.near.release_offered(near, bytes, NearSlots::Copies::of_any_size).bytes);
  left -= std::min(left, returning_bytes_);
  for (std::size_t looked = 0; left > 0 && looked < kLookedAtPerStep && !parts_.residency.live().empty(); ++looked) {
    if (next_region_ >= parts_.residency.live().size()) next_region_ = 0;
    const PageRef ref{parts_.residency.live()[next_region_], next_page_++};
    if (ref.index >= ref.region->page_count) {
      ++next_region_;
      next_page_ = 0;
      continue;
    }
    if (ref.page().slot == kNoFrame || ref.page().near != near) continue;
    const auto returned = return_page(ref);
    if (returned && *returned == Attempt::done) left -= std::min(left, ref.bytes());
    if (!returned) return_failed(ref, returned.error());
    if (!usual_room(returning_bytes_, ref.bytes())) return;
  }
}

void Lending::return_failed(PageRef ref, const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST) return parts_.core.lose_device(error);
  if (!std::has_single_bit(++failures_)) return;
  VMEM_LOG_WARN("the page at {:#x} stays in another GPU's memory, which wants it back: {} ({} such tries)",
                parts_.core.address_of(ref), error.message, failures_);
}

// done: the page has left the slot, or is being copied out of it.
Result<Attempt> Lending::return_page(PageRef ref) {
  Page& page = ref.page();
  if (page.cpu_users != 0) return Attempt::after_release;
  if (parts_.transfers.running(page.store) || parts_.transfers.running(page.wait) || parts_.transfers.busy_below(page))
    return Attempt::after_transfer;
  if (parts_.losses.is_unread(ref)) {
    VMEM_ASSIGN(const bool taken, parts_.unread.take_back(ref, 0));
    if (!taken) return Attempt::after_gpu;
  }
  if (page.mapped == Mapped::slot) {
    VMEM_ASSIGN(const Attempt hidden, parts_.gate.hide(ref));
    if (hidden != Attempt::done) return hidden;
  }
  if (page.mapped == Mapped::nothing && Contents::of_earlier_life(ref)) {
    parts_.contents.forget(ref);
    return Attempt::done;
  }
  if (page.mapped == Mapped::frame || page.version == 0 || !page.slot_current()) {
    parts_.near.drop(ref);
    return Attempt::done;
  }
  if (!usual_room(returning_bytes_, ref.bytes())) return Attempt::after_transfer;
  VMEM_ASSIGN(HostSlot found, parts_.host.find(ref, {}));
  if (found.full) return std::unexpected(*std::move(found.full));
  const std::optional<NearSlot> place = found.place;
  if (!place) return found.attempt;
  auto submitted = submit(ref, *place);
  if (!submitted) {
    parts_.core.config.backing->release(place->slot);
    return std::unexpected(std::move(submitted).error());
  }
  return Attempt::done;
}

// Acts like a store into the new slot: consumers of the bytes wait for it in stream order.
Status Lending::submit(PageRef ref, NearSlot to) {
  Page& page = ref.page();
  tiers::Transfer transfer = transfer_of(ref, tiers::Direction::load);
  transfer.slot = page.slot;
  transfer.frame = parts_.core.config.in_place->device_address(to.slot, Access::write);
  transfer.frame_elsewhere = true;
  InFlight entry = in_flight(ref, tiers::Direction::load, InFlight::Kind::returned, parts_.core.now_us());
  entry.from = {page.near, page.slot};
  Transfers::Room room = Transfers::reserve(entry);
  VMEM_TRY(parts_.near.of(page).tier->submit({&transfer, 1}));
  parts_.transfers.enter(std::move(room), transfer);
  parts_.core.note(ref, Happened::returned);
  parts_.near.assign(ref, to);
  page.slot_version = page.version;
  page.store = transfer.id;
  returning_bytes_ += ref.bytes();
  parts_.core.counters.peer_returned_bytes += ref.bytes();
  parts_.near.came_to_host_memory(ref);
  parts_.core.worked = true;
  return {};
}

void Lending::finish(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  returning_bytes_ -= transfer.bytes;
  const bool latest = page.store == id;
  if (latest) page.store = 0;
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  const bool only_copy = latest && page.version == transfer.version && page.slot_current();
  if (completion.outcome == tiers::Outcome::done || !live || !only_copy) {
    parts_.near[transfer.from.near].tier->release(transfer.from.slot);
    return;
  }
  // The old slot still has the bytes, unless a mapping or a load uses the new slot's meanwhile.
  if (page.mapped != Mapped::nothing || page.owns_frame()) {
    // The page's users have read the new slot's bytes, which are wrong.
    if (completion.outcome == tiers::Outcome::failed && !parts_.unread.writes_unsaid(*ref.region))
      return parts_.unread.keep(ref, completion.error, transfer.from);
    parts_.near[transfer.from.near].tier->release(transfer.from.slot);
    return parts_.unread.lose(ref, completion.error);
  }
  parts_.near.drop(ref);
  parts_.near.assign(ref, transfer.from);
  page.slot_version = page.version;
  return_failed(ref, completion.error);
}

}  // namespace vmem::migration
