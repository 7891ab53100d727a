// Memory of other GPUs: where pages that leave HBM go before host memory, as long as it is lent. A lender's own allocations take it
// back: what lies there then goes to host memory, or gives up a slot that it does not need.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/log.hpp"
#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

constexpr std::size_t kLookedAtPerStep = 4096;  // pages

}  // namespace

// What a device's own allocations leave.
std::uint64_t Mover::left_to_lend(const DeviceState& device, std::uint64_t most_bytes) const {
  const std::uint64_t own = std::min(device.committed_bytes, device.config.hbm_bytes);
  const std::uint64_t left = device.config.hbm_bytes - own;
  return std::min(most_bytes, left / pagetable::kGranuleBytes * pagetable::kGranuleBytes);
}

std::uint64_t Mover::lendable(const LentMemory& lent) const {
  if (!lent.lender) return lent.tier->usage().budget_bytes;
  return left_to_lend(*devices_[std::size_t(*lent.lender)], lent.most_bytes);
}

std::uint64_t Mover::lent_for_certain(const LentMemory& lent) const { return lent.revocable ? 0 : lendable(lent); }

// Other processes have been asked for memory that allocations need, and have time left to give it back.
bool Mover::lent_comes_back() const {
  return std::ranges::any_of(config_.lent_out, [this](const LentOut& out) {
    const LentOut::Held held = out.held();
    return held.bytes - std::min(held.bytes, held.overdue_bytes) >
           left_to_lend(*devices_[std::size_t(out.lender)], out.most_bytes);
  });
}

// The device's budget, between its own frames and what it lends. Frames that have not come back yet are not the device's.
template <class Held, class SetLimit>
void Mover::split_budget(DeviceState& device, std::uint64_t wanted, Held&& held, SetLimit&& set_limit) {
  const std::uint64_t total = device.config.hbm_bytes;
  device.hbm.set_budget(total - wanted);
  // Free frames of the device's own are in the way of lending; what cannot be given back is not lent.
  if (auto shrunk = device.hbm.shrink(); !shrunk && shrunk.error().status == VMEM_ERROR_DEVICE_LOST)
    return lose_device(shrunk.error());
  const std::uint64_t lent_bytes = std::min(wanted, total - std::min(total, device.hbm.created_bytes()));
  set_limit(lent_bytes);
  const std::uint64_t away = std::max<std::uint64_t>(lent_bytes, held());
  device.hbm.set_budget(total - std::min(total, away));
}

void Mover::balance_lending(DeviceState& device) {
  for (const LentMemory& lent : config_.lent) {
    if (!lent.lender || devices_[std::size_t(*lent.lender)].get() != &device) continue;
    split_budget(
        device, lendable(lent), [&] { return lent.tier->usage().held_bytes; },
        [&](std::uint64_t bytes) {
          if (lent.tier->usage().budget_bytes != bytes) lent.set_budget(bytes);
        });
  }
  for (const LentOut& out : config_.lent_out) {
    if (devices_[std::size_t(out.lender)].get() != &device) continue;
    split_budget(device, left_to_lend(device, out.most_bytes), [&] { return out.held().bytes; }, out.set_limit);
  }
}

Result<Mover::LentSlot> Mover::allocate_lent(std::size_t near, std::uint64_t page_bytes) {
  VMEM_ASSIGN(tiers::SlotGrant grant, near_[near].tier->allocate(page_bytes));
  if (grant.grant != tiers::Grant::full) return LentSlot{grant};
  const tiers::TierUsage usage = near_[near].tier->usage();
  if (usage.used_bytes > usage.budget_bytes) return LentSlot{grant};  // it is wanted back
  const GivenUp same = give_up_slots(near, page_bytes, Copies::of_this_size);
  const GivenUp any = same.bytes != 0 ? same : give_up_slots(near, page_bytes, Copies::of_any_size);
  if (same.bytes == 0 && any.bytes < page_bytes) return LentSlot{grant, same.busy || any.busy || any.bytes != 0};
  VMEM_ASSIGN(grant, near_[near].tier->allocate(page_bytes));
  return LentSlot{grant};
}

void Mover::return_lent() {
  return_waits_ = false;
  for (std::size_t near = 1; near < near_.size(); ++near) {
    const tiers::TierUsage usage = near_[near].tier->usage();
    if (usage.used_bytes > usage.budget_bytes) return_from(near, usage.used_bytes - usage.budget_bytes);
    const LentMemory& lent = config_.lent[near - 1];
    if (lent.lender) balance_lending(*devices_[std::size_t(*lent.lender)]);
  }
  for (const LentOut& out : config_.lent_out) balance_lending(*devices_[std::size_t(out.lender)]);
}

void Mover::return_from(std::size_t near, std::uint64_t bytes) {
  return_waits_ = true;
  std::uint64_t left = bytes - std::min(bytes, give_up_slots(near, bytes, Copies::of_any_size).bytes);
  left -= std::min(left, returning_bytes_);
  for (std::size_t looked = 0; left > 0 && looked < kLookedAtPerStep && !live_.empty(); ++looked) {
    if (return_region_ >= live_.size()) return_region_ = 0;
    const PageRef ref{live_[return_region_], return_page_++};
    if (ref.index >= ref.region->page_count) {
      ++return_region_;
      return_page_ = 0;
      continue;
    }
    if (ref.page().slot == kNoFrame || ref.page().near != near) continue;
    const auto returned = return_page(ref);
    if (returned && *returned != Returned::no) left -= std::min(left, ref.bytes());
    if (!returned) return_failed(ref, returned.error());
    if (!usual_room(returning_bytes_, ref.bytes())) return;
  }
}

void Mover::return_failed(PageRef ref, const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST) return lose_device(error);
  if (!std::has_single_bit(++stuck_returns_)) return;
  VMEM_LOG_WARN("the page at {:#x} stays in another GPU's memory, which wants it back: {} ({} such tries)",
                address_of(ref), error.message, stuck_returns_);
}

// No: something uses it, and will not always.
Result<Mover::Returned> Mover::return_page(PageRef ref) {
  Page& page = ref.page();
  if (page.cpu_users != 0 || running(page.store) || running(page.wait) || spilling(page)) return Returned::no;
  if (is_unread(ref)) {
    VMEM_ASSIGN(const bool taken, take_back_unread(ref, 0));
    if (!taken) return Returned::no;
  }
  if (page.mapped == Mapped::slot) {
    VMEM_ASSIGN(const Evicted hidden, hide(ref));
    if (hidden != Evicted::done) return Returned::no;
  }
  if (page.mapped == Mapped::nothing && outlived(ref)) {
    forget_contents(ref);
    return Returned::done;
  }
  if (page.mapped == Mapped::frame || page.version == 0 || !page.slot_current()) {
    drop_slot(ref);
    return Returned::done;
  }
  if (!usual_room(returning_bytes_, ref.bytes())) return Returned::no;
  VMEM_ASSIGN(const std::optional<Place> place, find_host_slot(ref, Displaces::anything));
  if (!place) return Returned::no;
  auto submitted = submit_return(ref, *place);
  if (!submitted) {
    config_.backing->release(place->slot);
    return std::unexpected(std::move(submitted).error());
  }
  return Returned::moving;
}

// As a store into the new slot: who wants the bytes waits for it in stream order.
Status Mover::submit_return(PageRef ref, Place to) {
  Page& page = ref.page();
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.slot = page.slot;
  transfer.frame = config_.in_place->device_address(to.slot, Access::write);
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = tiers::Direction::load;
  Transfers::Room room = Transfers::reserve({.region = ref.region,
                                             .page = ref.index,
                                             .bytes = ref.bytes(),
                                             .direction = transfer.direction,
                                             .kind = InFlight::Kind::returned,
                                             .version = page.version,
                                             .from = {page.near, page.slot}});
  VMEM_TRY(near_of(page).tier->submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  note(ref, Happened::returned);
  settle_in(ref, to);
  page.slot_version = page.version;
  page.store = transfer.id;
  returning_bytes_ += ref.bytes();
  counters_.peer_returned_bytes += ref.bytes();
  came_to_host_memory(ref);
  worked_ = true;
  return {};
}

void Mover::finish_return(PageRef ref, std::uint64_t id, const InFlight& transfer,
                          const tiers::Completion& completion) {
  Page& page = ref.page();
  returning_bytes_ -= transfer.bytes;
  const bool latest = page.store == id;
  if (latest) page.store = 0;
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  const bool only_copy = latest && page.version == transfer.version && page.slot_current();
  if (completion.outcome == tiers::Outcome::done || !live || !only_copy) {
    near_[transfer.from.near].tier->release(transfer.from.slot);
    return;
  }
  // The slot that it left has the bytes still, unless somebody was given the new one's meanwhile.
  if (page.mapped != Mapped::nothing || (page.frame != kNoFrame && !page.standby)) {
    // It has read the new one, whose bytes are others.
    if (completion.outcome == tiers::Outcome::failed && !writes_unsaid(*ref.region))
      return keep_unread(ref, completion.error, transfer.from);
    near_[transfer.from.near].tier->release(transfer.from.slot);
    return lose_page(ref, completion.error);
  }
  drop_slot(ref);
  settle_in(ref, transfer.from);
  page.slot_version = page.version;
  return_failed(ref, completion.error);
}

}  // namespace vmem::migration
