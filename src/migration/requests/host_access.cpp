// vmem_read and vmem_write: one page at a time, where it is.
#include <fmt/format.h>

#include <utility>

#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "migration/requests/room_later.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

namespace {

// Less than another node waits for an answer: it asks again.
constexpr std::uint64_t kForOtherNodeUs = 1'000'000;
constexpr std::uint8_t kCpuUsersMax = 255;  // the limit of Page::cpu_users

// The uses that have to end before the page is read, or written. Kernels that read what nobody can
// write to are not waited for.
std::vector<Stamp> awaited_uses(MoverParts& parts, const PageRun& run, bool write) {
  pagetable::Region& region = *run.region;
  if (!write && region.immutable()) return {};
  parts.uses.stamp_untracked(region);
  std::vector<Stamp> uses(region.uses.begin(), region.uses.end());
  const auto& of_page = region.pages[run.first].uses;
  uses.insert(uses.end(), of_page.begin(), of_page.end());
  return uses;
}

}  // namespace

std::optional<Status> OpenPageRequest::advance(MoverParts& parts) {
  parts.below.waits_no_more(this);
  std::optional<std::uint32_t> queue;
  std::optional<Status> opened = open(parts, queue);
  if (!opened && queue) parts.below.waits_for_others(this, *queue);
  return opened;
}

std::optional<Status> OpenPageRequest::open(MoverParts& parts, std::optional<std::uint32_t>& queue) {
  VMEM_TRY(check_live(run));
  const PageRef ref{run.region, run.first};
  Page& page = ref.page();
  const std::uintptr_t address = parts.core.address_of(ref);
  if (write) VMEM_TRY(parts.below.check_writable(*run.region));
  if (ref.state().has(PageState::kLost)) return std::unexpected(parts.unread.error(ref, 0));
  // Others may hold, use and write their parts of such a page meanwhile, which is safe while it
  // stays in its frame.
  const bool strangers = run.region->has_strangers();
  if (write && !strangers && parts.core.config.threads->overlapping_holds(ref.begin(), ref.end()).named != 0) {
    return fail(VMEM_ERROR_IN_USE,
                fmt::format("the page at {:#x} is held by an acquire; release it before vmem_write", address));
  }
  parts.uses.drain();  // those of holds that ended before the check above
  if (!uses_) uses_ = awaited_uses(parts, run, write);
  if (page.cpu_users == kCpuUsersMax || (page.cpu_users != 0 && write && !strangers)) return std::nullopt;
  if (parts.transfers.running(page.wait) || parts.transfers.running(page.store)) return std::nullopt;
  std::erase_if(*uses_, [&](Stamp use) { return parts.uses.complete(use); });
  if (!uses_->empty() || (write && !strangers && !parts.uses.uses_complete(*run.region, page))) return std::nullopt;
  if (Contents::of_earlier_life(ref)) {
    if (page.mapped == Mapped::nothing) {
      parts.contents.forget(ref);
    } else if (write) {
      page.life = run.region->life.load(std::memory_order_seq_cst);
    }
  }
  bool in_frame = page.owns_frame();
  absent = for_other_node && page.version != 0 && !in_frame && !page.slot_current() && Below::from_source(ref);
  coming = absent && parts.transfers.busy_below(page);
  if (absent) return Status{};
  if (!in_frame && page.version != 0) {
    if (for_other_node && !page.slot_current()) {
      VMEM_ASSIGN(queue, parts.below.queue_for_others(ref));
    }
    auto here = parts.recall.recall(ref);
    if (!here && may_find_room_later(parts, here.error())) here = Attempt::after_transfer;
    if (!here) return std::unexpected(std::move(here).error());
    if (*here != Attempt::done || (write && parts.transfers.busy_below(page))) {
      if (below_.over(parts.core, for_other_node ? kForOtherNodeUs : UINT64_MAX))
        return std::unexpected(parts.stuck.unserved_error(ref));
      return std::nullopt;
    }
    if (page.spilled != nullptr) page.spilled->wanted = false;
  }
  if (write && !in_frame) {
    auto place = parts.bring_in.place_for_cpu_write(ref);
    if (!place && may_find_room_later(parts, place.error())) place = Attempt::after_transfer;
    if (!place) return std::unexpected(std::move(place).error());
    if (*place != Attempt::done) {
      if (below_.over(parts.core)) return std::unexpected(parts.stuck.unserved_error(ref));
      return std::nullopt;
    }
    in_frame = page.owns_frame();
    if (!in_frame) page.slot_version = page.version + 1;
  }
  if (write) ++page.version;
  ++page.cpu_users;
  if (in_frame) {
    device_window = parts.devices.of(*run.region).hbm.frame(page.frame).window;
  } else if (page.slot_current() && page.version != 0) {
    const tiers::Tier& near = *parts.near.of(page).tier;
    const auto& slots = dynamic_cast<const tiers::InPlaceTier&>(near);
    const Access access = write ? Access::write : Access::read;
    host = slots.host_address(page.slot, access);
    if (host == nullptr) device_window = slots.device_address(page.slot, access);
  }
  return Status{};
}

std::optional<Status> ClosePageRequest::advance(MoverParts& parts) {
  --run.region->pages[run.first].cpu_users;
  parts.near.passed_through({run.region, run.first});
  return Status{};
}

}  // namespace vmem::migration
