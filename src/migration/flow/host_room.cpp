#include "migration/flow/host_room.hpp"

#include <algorithm>
#include <vector>

#include "migration/place/full_error.hpp"
#include "migration/place/lendable.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using tiers::Grant;

namespace {

// Limit for host slots of pages that were read ahead and are not in HBM yet: twice as many pages as
// can be in flight. And the room that allocations leave in host memory for pages of files:
// kReservedPages of the largest.
constexpr std::uint64_t kPassingPages = 8;
constexpr std::uint64_t kPassingBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kReservedPages = 2;
// Looked at in a step, while more are kept than their quota allows.
constexpr std::size_t kCopiesTried = 64;

}  // namespace

Result<Attempt> HostRoom::need_slot(PageRef ref, const SlotWish& wish) {
  const Page& page = ref.page();
  if (page.slot != kNoFrame) return parts_.transfers.busy_below(page) ? Attempt::after_transfer : Attempt::done;
  Attempt otherwise = Attempt::never;
  // Pages of files only pass through host memory: they use no lent memory.
  for (const std::uint8_t lender : parts_.devices.of(*ref.region).config.lenders) {
    if (ref.region->read_only) break;
    const std::uint8_t near = lender + 1;
    VMEM_ASSIGN(const LentSlot lent, allocate_lent(near, ref.bytes()));
    if (lent.grant.grant == Grant::later) return Attempt::after_transfer;
    otherwise = std::min(otherwise, lent.otherwise);
    if (lent.grant.grant == Grant::full) continue;
    NearSlots::assign(ref, {near, lent.grant.slot});
    return Attempt::done;
  }
  auto found = find(ref, wish);
  const bool none = !found ? found.error().status == VMEM_ERROR_OUT_OF_MEMORY : found->full.has_value();
  if (none && comes(otherwise)) return otherwise;
  if (!found) return std::unexpected(std::move(found).error());
  if (found->full) return std::unexpected(*std::move(found->full));
  if (found->place) settle(ref, *found->place);
  return found->attempt;
}

void HostRoom::settle(PageRef ref, NearSlot place) {
  NearSlots::assign(ref, place);
  if (ref.region->read_only) parts_.near.pass_through(ref);
}

Result<HostRoom::LentSlot> HostRoom::allocate_lent(std::size_t near, std::uint64_t page_bytes) {
  using Copies = NearSlots::Copies;
  tiers::Tier& tier = *parts_.near[near].tier;
  VMEM_ASSIGN(tiers::SlotGrant grant, tier.allocate(page_bytes));
  if (grant.grant != Grant::full) return LentSlot{grant};
  const tiers::TierUsage usage = tier.usage();
  if (usage.used_bytes > usage.budget_bytes) return LentSlot{grant};  // being reclaimed
  const auto same = parts_.near.release_offered(near, page_bytes, Copies::of_this_size);
  const auto any = same.bytes != 0 ? same : parts_.near.release_offered(near, page_bytes, Copies::of_any_size);
  if (same.bytes == 0 && any.bytes < page_bytes)
    return LentSlot{grant, any.bytes != 0 ? Attempt::after_transfer : std::min(same.more, any.more)};
  VMEM_ASSIGN(grant, tier.allocate(page_bytes));
  return LentSlot{grant};
}

Result<HostSlot> HostRoom::find(PageRef ref, const SlotWish& wish) {
  // Smaller pages must not repeatedly take the room that a request collects for a larger page.
  if (!awaited(wish.displaces) && ref.bytes() < awaited_bytes_) return HostSlot::later(Attempt::after_transfer);
  auto found = look_for(ref, wish);
  if (found && comes(found->attempt)) note_waiting(ref, wish.displaces);
  return found;
}

void HostRoom::note_waiting(PageRef ref, Displaces displaces) {
  if (awaited(displaces)) awaited_bytes_ = std::max(awaited_bytes_, ref.bytes());
}

Result<HostSlot> HostRoom::look_for(PageRef ref, const SlotWish& wish) {
  const std::uint64_t page_bytes = ref.bytes();
  tiers::Tier& host = *parts_.core.config.backing;
  const bool copied = parts_.near.keeps_copies_of(*ref.region);
  if (copied) hold_quota(page_bytes, wish.excluded);
  tiers::SlotGrant grant;
  if (leaves_room_for_files(ref)) {
    VMEM_ASSIGN(grant, host.allocate(page_bytes));
  }
  NearSlots::Released passing;
  if (grant.grant == Grant::full) {
    passing = release_passing(page_bytes, wish);
    if (passing.bytes >= page_bytes) {
      VMEM_ASSIGN(grant, host.allocate(page_bytes));
    }
  }
  if (grant.grant == Grant::granted) return HostSlot::found(grant.slot);
  if (grant.grant == Grant::later) return HostSlot::later(Attempt::after_transfer);
  // Pages of this program stay: a load that ends makes room, and what is read ahead can wait.
  if ((copied && wish.displaces == Displaces::unwanted) ||
      ((copied || wish.for_copy) && parts_.below.loading_to_host()))
    return HostSlot::later(Attempt::after_transfer);
  return displace(ref, wish, passing.more);
}

// Host memory is full.
Result<HostSlot> HostRoom::displace(PageRef ref, const SlotWish& wish, Attempt passing) {
  using Copies = NearSlots::Copies;
  const std::uint64_t page_bytes = ref.bytes();
  tiers::Tier& host = *parts_.core.config.backing;
  tiers::SlotGrant grant{Grant::full, 0};
  std::optional<Error> none;
  // A slot of the same size can be reused as it is; else several of other sizes make room for one.
  const auto same = parts_.near.release_offered(0, page_bytes, Copies::of_this_size);
  // GPU work that uses slots in place may wait for the caller, whose patience then counts.
  const auto later = [&](Attempt why) { return HostSlot::later(passing == Attempt::after_gpu ? passing : why); };
  if (same.bytes == 0 && comes(same.more)) return later(same.more);
  const auto any = same.bytes != 0 ? same : parts_.near.release_offered(0, page_bytes, Copies::of_any_size);
  if (same.bytes != 0 || any.bytes >= page_bytes) {
    VMEM_ASSIGN(grant, host.allocate(page_bytes));
  } else if (parts_.core.config.spill != nullptr) {
    const auto room = parts_.spill.make_room(page_bytes, wish);
    if (!room) none = room.error();
    // With a tier below, the caller's deadline bounds the wait, not its patience.
    if (!room && comes(passing)) passing = Attempt::after_transfer;
    if (room && *room != Attempt::done) return HostSlot::later(*room);
    if (room) {
      VMEM_ASSIGN(grant, host.allocate(page_bytes));
      // The released slots were of other sizes and make no slot of this size yet.
      if (grant.grant == Grant::full) return later(Attempt::after_transfer);
    }
  }
  // A slot is released when a transfer completes, or more slots of other sizes are released next.
  const bool more = wish.displaces == Displaces::lifting && any.bytes != 0;
  if (none && (comes(any.more) || more || parts_.below.loading_to_host())) return later(Attempt::after_transfer);
  if (grant.grant == Grant::granted) return HostSlot::found(grant.slot);
  if (grant.grant == Grant::later || lent_comes_back(parts_.core, parts_.devices))
    return later(Attempt::after_transfer);
  if (comes(passing)) return later(passing);
  if (wish.displaces == Displaces::advised) {
    const auto advised = parts_.near.release_offered(0, page_bytes, Copies::of_read_mostly_too);
    if (advised.bytes >= page_bytes) {
      VMEM_ASSIGN(grant, host.allocate(page_bytes));
    }
    if (grant.grant == Grant::granted) return HostSlot::found(grant.slot);
    if (comes(advised.more)) return later(advised.more);
  }
  if (!none) none = full_error(parts_.core, parts_.devices, parts_.near, parts_.below, "a backing copy", page_bytes);
  return HostSlot{Attempt::never, {}, std::move(none)};
}

// ---- pages of files ----

bool HostRoom::room_to_pass(std::uint64_t page_bytes) {
  const std::uint64_t limit = std::max(kPassingPages * page_bytes, kPassingBytes);
  const std::uint64_t now = parts_.near.passing_bytes(NearSlots::Passing::waiting) + page_bytes;
  if (now <= limit) return true;
  NearSlots::Released released;
  release_passing(now - limit, {Displaces::unwanted}, released);
  return now - released.bytes <= limit;
}

// Whether host memory keeps room for pages of files after a slot for this page.
bool HostRoom::leaves_room_for_files(PageRef ref) const {
  if (!parts_.below.has_sources() || ref.region->read_only) return true;
  const tiers::TierUsage host = parts_.core.config.backing->usage();
  const std::uint64_t reserved = std::min(kReservedPages * parts_.below.largest_file_page(), host.budget_bytes / 4);
  return host.used_bytes - parts_.near.passing_bytes(NearSlots::Passing::all) + ref.bytes() + reserved <=
         host.budget_bytes;
}

// Copies first: somebody waits, or will, for pages that were read ahead.
NearSlots::Released HostRoom::release_passing(std::uint64_t bytes, const SlotWish& wish) {
  NearSlots::Released released;
  const SlotWish unwanted{Displaces::unwanted, wish.excluded};
  release_copies(bytes, unwanted, parts_.near.copies().candidates().size(), released);
  release_passing(bytes, unwanted, released);
  // Pages read ahead for an imminent use, or used in place, come last.
  if (wish.displaces == Displaces::unwanted) return released;
  release_copies(bytes, wish, parts_.near.copies().candidates().size(), released);
  release_passing(bytes, wish, released);
  return released;
}

void HostRoom::release_passing(std::uint64_t bytes, const SlotWish& wish, NearSlots::Released& released) {
  // A copy: releasing a slot removes its page from the list.
  const std::vector<PageRef> eldest_first(parts_.near.passing().begin(), parts_.near.passing().end());
  for (const PageRef ref : eldest_first) {
    if (released.bytes >= bytes) return;
    release_one(ref, wish, released);
  }
}

// Looks at `most` copies at most. Those in use count as used now: the next call looks at others.
void HostRoom::release_copies(std::uint64_t bytes, const SlotWish& wish, std::size_t most,
                              NearSlots::Released& released) {
  const std::list<PageId>& copies = parts_.near.copies().candidates();
  for (; most > 0 && !copies.empty() && released.bytes < bytes; --most) {
    const PageId eldest = copies.front();
    const PageRef ref{parts_.core.config.space->find(eldest.region), eldest.index};
    if (!release_one(ref, wish, released)) parts_.near.copy_used(ref);
  }
}

bool HostRoom::release_one(PageRef ref, const SlotWish& wish, NearSlots::Released& released) {
  // Ending regions release their slots themselves.
  if (!ref.live() && !comes(released.more)) released.more = Attempt::after_transfer;
  if (!ref.live() || &ref.page() == wish.excluded) return false;
  const Page& page = ref.page();
  const bool needed = page.spilled->wanted || page.mapped == Mapped::slot;
  if (needed && wish.displaces == Displaces::unwanted) return false;
  if (page.mapped == Mapped::slot && !page.pinned) {
    const auto hidden = parts_.gate.hide(ref);
    if (!hidden) parts_.core.eviction_failed(ref, hidden.error());
    if (hidden && *hidden == Attempt::after_gpu) released.more = Attempt::after_gpu;
  }
  const bool at_rest = page.mapped != Mapped::slot && page.cpu_users == 0 && !parts_.transfers.running(page.wait) &&
                       !parts_.transfers.busy_below(page);
  if (!at_rest && page.mapped != Mapped::slot && !comes(released.more)) released.more = Attempt::after_transfer;
  if (!at_rest) return false;
  parts_.near.drop(ref);
  released.bytes += ref.bytes();
  return true;
}

// ---- copies of pages that other nodes published ----

void HostRoom::hold_quota(std::uint64_t more, const Page* excluded) {
  const std::uint64_t excess = parts_.near.copies().excess(more);
  if (excess == 0) return;
  const std::size_t before = parts_.near.copies().candidates().size();
  NearSlots::Released released;
  release_copies(excess, {Displaces::anything, excluded}, kCopiesTried, released);
  MoverCounters& counters = parts_.core.counters;
  counters.published_dropped_pages += before - parts_.near.copies().candidates().size();
  counters.published_dropped_bytes += released.bytes;
}

}  // namespace vmem::migration
