#include "migration/flow/ahead.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/log.hpp"
#include "migration/flow/in_flight_limits.hpp"

namespace vmem::migration {

using pagetable::Mapped;

namespace {

constexpr std::size_t kPromotionsPerStep = 64;  // tried in a step; acquires wait meanwhile
constexpr std::size_t kRecallsAhead = 32;       // tried in a step
constexpr std::size_t kLeavingMax = 32;         // tried at a time
constexpr std::size_t kPlanned = 8;             // requested from the policy at a time
constexpr std::size_t kPlannedDistant = 32;     // with tiers below: 64 MiB of the smallest pages
constexpr std::uint64_t kLeavingPauseUs = 100;  // before a retry when nothing has happened
// Enough to keep the link busy; an eviction on demand waits no longer than this takes.
constexpr std::uint64_t kStoreBytesInFlight = std::uint64_t{128} << 20;

PrefetchQuery query_of(const Device& device) {
  const std::uint64_t budget = device.hbm.budget_bytes();
  return {device.index, device.config.hbm_bytes, budget - std::min(budget, device.hbm.used_bytes())};
}

}  // namespace

void Ahead::prefetch() {
  // Start reads from below before the pages' turns come.
  for (std::size_t i = 0; parts_.below.any() && i < std::min(asked_.size(), kRecallsAhead); ++i) {
    if (asked_[i].live() && !parts_.recall.ahead(asked_[i])) break;
  }
  while (!asked_.empty()) {
    const PageRef ref = asked_.front();
    if (ref.live() && !load_has_room(parts_.devices.of(*ref.region), ref.bytes())) break;
    const Result<Attempt> started = ref.live() ? start(ref) : Attempt::done;
    const bool waits = started && *started != Attempt::done;
    // Without a frame: transfers in flight may make room in a tier below.
    const bool room_comes = waits && parts_.below.any() && !parts_.transfers.empty();
    if (room_comes || (waits && *started == Attempt::after_transfer)) break;
    asked_.pop_front();
    if (started && *started == Attempt::done) continue;
    parts_.recall.not_wanted(ref);
    // A pinned page stays wanted: promote retries it.
    if (ref.page().pinned) parts_.promotions.add(ref);
  }
  plan_waits_ = false;
  for (Device& device : parts_.devices.all()) {
    follow_plan(device);
    evict_ahead(device);
  }
}

// Keeps the policy's plan until each page has started: pages wait for frames in the plan's order.
void Ahead::follow_plan(Device& device) {
  if (parts_.below.any()) plan_more(device);
  for (;;) {
    if (device.planned.empty()) plan_more(device);
    if (device.planned.empty()) return;
    const PageId next = device.planned.front();
    const PageRef ref{parts_.core.config.space->find(next.region), next.index};
    if (ref.live()) {
      if (!load_has_room(device, ref.bytes())) return;
      const Result<Attempt> started = start(ref);
      if (!started) {
        parts_.recall.not_wanted(ref);
        device.planned.pop_front();
        return;
      }
      if (*started != Attempt::done) {
        // Without work in flight that could free a frame, waiting is useless.
        plan_waits_ = !parts_.transfers.empty() || !parts_.core.config.streams->idle();
        if (plan_waits_) return;
        for (const PageId id : device.planned) {
          const PageRef given_up{parts_.core.config.space->find(id.region), id.index};
          if (given_up.live()) parts_.recall.not_wanted(given_up);
        }
        device.planned.clear();
        return;
      }
    }
    device.planned.pop_front();
  }
}

// Starts reads from below before the pages' turns come. Requests the next pages before the plan
// runs out, so that a disk does not idle.
void Ahead::plan_more(Device& device) {
  std::array<PageId, kPlannedDistant> wanted;
  const std::size_t most = parts_.below.any() ? kPlannedDistant : kPlanned;
  if (device.planned.size() <= most / 2) {
    const std::size_t count = parts_.core.config.policy->prefetches(query_of(device), std::span(wanted).first(most));
    device.planned.insert(device.planned.end(), wanted.begin(), wanted.begin() + std::ptrdiff_t(count));
  }
  if (!parts_.below.any()) return;
  for (const PageId id : device.planned) {
    const PageRef ref{parts_.core.config.space->find(id.region), id.index};
    if (ref.live() && !parts_.recall.ahead(ref)) break;
  }
}

// Evicts pages that must be evicted before their next use, while the link out is idle: later demand
// for their frames does not wait, and until then they can return without a copy. Pages still in use
// are offered again.
void Ahead::evict_ahead(Device& device) {
  const std::uint64_t now_us = parts_.core.now_us();
  if ((parts_.core.worked || now_us - device.leaving_tried_us >= kLeavingPauseUs) &&
      device.stores_bytes < kStoreBytesInFlight) {
    device.leaving_tried_us = now_us;
    device.leaving_waits = false;
    PageId next;
    for (std::size_t tried = 0; tried < kLeavingMax && device.stores_bytes < kStoreBytesInFlight; ++tried) {
      // One at a time: a page not tried now comes first the next time.
      if (parts_.core.config.policy->leaves(query_of(device), {&next, 1}) == 0) break;
      const PageRef ref{parts_.core.config.space->find(next.region), next.index};
      if (!ref.live()) continue;
      const auto evicted = parts_.evictor.evict(ref);
      if (!evicted) parts_.core.eviction_failed(ref, evicted.error());
      device.leaving_waits = device.leaving_waits || (evicted && comes(*evicted));
    }
  }
  plan_waits_ =
      plan_waits_ || (device.leaving_waits && (!parts_.transfers.empty() || !parts_.core.config.streams->idle()));
}

Result<Attempt> Ahead::start(PageRef ref) {
  auto started = try_to_start(ref);
  if (started) return started;
  if (started.error().status == VMEM_ERROR_DEVICE_LOST) parts_.core.lose_device(started.error());
  if (std::has_single_bit(++prefetch_failures_)) {
    VMEM_LOG_WARN("prefetch at {:#x} failed: {} ({} such failures)", parts_.core.address_of(ref),
                  started.error().message, prefetch_failures_);
  }
  return started;
}

Result<Attempt> Ahead::try_to_start(PageRef ref) {
  const Page& page = ref.page();
  const bool nothing_to_do = page.mapped == Mapped::frame || page.cpu_users != 0 || page.in_place ||
                             page.version == 0 || Contents::of_earlier_life(ref) || ref.state().has(PageState::kLost);
  if (nothing_to_do) return Attempt::done;
  if (page.mapped == Mapped::slot) {
    // A page in use must not block the pages behind it.
    parts_.promotions.add(ref);
    return Attempt::done;
  }
  if (!page.has_frame()) {
    const auto near = read_from_below(ref);
    const bool full = !near && near.error().status == VMEM_ERROR_OUT_OF_MEMORY;
    if (full) return Attempt::never;
    if (!near || *near != Attempt::done) return near;
  }
  const Access access = page.last_write ? Access::write : Access::read;
  if (page.has_frame()) {
    VMEM_TRY(parts_.loader.remap(ref, access, arrived(ref) ? Cause::prefetch : Cause::use));
    return Attempt::done;
  }
  VMEM_ASSIGN(const Grab grab, parts_.finder.grab({ref, Search::first_choices}));
  if (!grab.frame) return comes(grab.otherwise) ? Attempt::after_gpu : Attempt::never;
  VMEM_TRY(parts_.loader.load(ref, *grab.frame, access, OldBytes::fetch, Cause::prefetch));
  return Attempt::done;
}

// after_transfer: the page is being read. Without a frame it is read into host memory at least.
Result<Attempt> Ahead::read_from_below(PageRef ref) {
  if (parts_.direct.possible(ref)) {
    VMEM_ASSIGN(const Attempt started, parts_.direct.start(ref, Search::first_choices));
    if (started == Attempt::after_gpu && !parts_.direct.checking(ref.page())) return started;
    if (started != Attempt::never) return Attempt::after_transfer;
  }
  VMEM_ASSIGN(const Attempt recalled, parts_.recall.recall(ref, Displaces::anything, Wanted::later));
  return recalled == Attempt::done ? recalled : Attempt::after_transfer;
}

void Ahead::promote() {
  for (std::size_t left = std::min(parts_.promotions.size(), kPromotionsPerStep); left > 0; --left) {
    const PageRef ref = parts_.promotions.front();
    const bool promoting = ref.live() && ref.page().promoting;
    if (promoting && !load_has_room(parts_.devices.of(*ref.region), ref.bytes())) return;
    parts_.promotions.pop();
    if (!promoting) continue;
    ref.page().promoting = false;
    auto promoted = promote_one(ref);
    const bool again = promoted && (comes(*promoted) || (*promoted == Attempt::never && ref.page().pinned));
    if (again) parts_.promotions.add(ref);
    if (promoted) continue;
    if (promoted.error().status == VMEM_ERROR_DEVICE_LOST) parts_.core.lose_device(promoted.error());
    VMEM_LOG_WARN("moving the page at {:#x} to HBM failed: {}", parts_.core.address_of(ref), promoted.error().message);
  }
}

// Moves a page served in place into a frame. First checks that the page can be unmapped, so as not
// to evict another in vain. never: there is no frame. after_release: wait for the next use.
Result<Attempt> Ahead::promote_one(PageRef ref) {
  const Page& page = ref.page();
  const bool lost = ref.state().has(PageState::kLost);
  if (page.mapped == Mapped::nothing && page.pinned && !lost) {
    const auto started = start(ref);
    return started && *started == Attempt::done ? Attempt::done : Attempt::never;
  }
  if (page.mapped != Mapped::slot || page.in_place || page.kept || lost) return Attempt::after_release;
  parts_.uses.start_tracking();
  if (page.cpu_users != 0) return Attempt::after_release;
  if (const Attempt why = parts_.gate.held(ref, 0); why != Attempt::done) return why;
  if (parts_.transfers.running(page.wait) || !parts_.uses.uses_complete(*ref.region, ref.page()))
    return Attempt::after_gpu;
  VMEM_ASSIGN(const Grab grab, parts_.finder.grab({ref, Search::first_choices}));
  if (!grab.frame) return Attempt::never;
  const auto left = parts_.gate.hide(ref);
  if (!left || *left != Attempt::done) {
    tiers::FramePool& hbm = parts_.devices.of(*ref.region).hbm;
    hbm.give_back(*grab.frame, hbm.frame(*grab.frame).busy_until, nullptr);
    return left;
  }
  VMEM_TRY(parts_.loader.load(ref, *grab.frame, page.last_write ? Access::write : Access::read));
  return Attempt::done;
}

void Ahead::forget(const Region& region) {
  std::erase_if(asked_, [&](const PageRef& ref) { return ref.region == &region; });
}

}  // namespace vmem::migration
