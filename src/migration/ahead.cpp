// Work nobody waits for: fetching ahead of need, and giving frames to pages that are used in place.
#include <algorithm>
#include <array>
#include <bit>

#include "base/log.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

constexpr std::size_t kPromotionsPerStep = 64;  // looked at; misses wait meanwhile
constexpr std::size_t kRecallsAhead = 16;       // looked at in a step
constexpr std::size_t kLeavingMax = 32;         // tried at a time
constexpr std::size_t kPlanned = 8;             // asked of the policy at a time
constexpr std::uint64_t kLeavingPauseUs = 100;  // before another try where nothing has happened
// Enough to keep the link busy; a page that must leave now waits no longer than that.
constexpr std::uint64_t kStoreBytesInFlight = std::uint64_t{128} << 20;

}  // namespace

void Mover::prefetch_ahead() {
  // What lies below host memory sets out before its turn comes.
  for (std::size_t i = 0; has_below() && i < std::min(asked_ahead_.size(), kRecallsAhead); ++i) {
    if (asked_ahead_[i].live() && !recall_ahead(asked_ahead_[i])) break;
  }
  while (!asked_ahead_.empty()) {
    const PageRef ref = asked_ahead_.front();
    if (ref.live() && !load_has_room(device_of(*ref.region), ref.bytes())) break;
    const Started started = ref.live() ? start_prefetch(ref) : Started::yes;
    // Or room is being made, as far down as that goes.
    const bool room_comes = started == Started::no_frame && has_below() && !in_flight_.empty();
    if (started == Started::coming || room_comes) break;
    asked_ahead_.pop_front();
    if (started != Started::yes) not_wanted(ref);
    // A pinned page stays wanted.
    if (started != Started::yes && ref.page().pinned) queue_promotion(ref);
  }
  plan_waits_ = false;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    follow_plan(int(i));
    give_up_ahead(int(i));
  }
}

// The plan is the policy's, kept until each page has started: what waits for a frame waits here, in order.
void Mover::follow_plan(int index) {
  DeviceState& device = *devices_[std::size_t(index)];
  if (has_below()) plan_more(index);
  for (;;) {
    if (device.planned.empty()) plan_more(index);
    if (device.planned.empty()) return;
    const PageId next = device.planned.front();
    const PageRef ref{config_.space->find(next.region), next.index};
    if (ref.live()) {
      if (!load_has_room(device, ref.bytes())) return;
      const Started started = start_prefetch(ref);
      if (started == Started::failed) {
        not_wanted(ref);
        device.planned.pop_front();
        return;
      }
      if (started == Started::no_frame || started == Started::coming) {
        // Without work under way that could free a frame there is nothing to wait for.
        plan_waits_ = !in_flight_.empty() || !config_.streams->idle();
        if (plan_waits_) return;
        for (const PageId id : device.planned) {
          const PageRef given_up{config_.space->find(id.region), id.index};
          if (given_up.live()) not_wanted(given_up);
        }
        device.planned.clear();
        return;
      }
    }
    device.planned.pop_front();
  }
}

// What lies below host memory sets out before its turn comes, and a plan that runs out is followed by the next one before a disk has
// nothing more to do.
void Mover::plan_more(int index) {
  DeviceState& device = *devices_[std::size_t(index)];
  std::array<PageId, kPlanned> wanted;
  if (device.planned.size() <= kPlanned / 2) {
    const std::size_t count = config_.policy->prefetches(query_of(index), wanted);
    device.planned.insert(device.planned.end(), wanted.begin(), wanted.begin() + std::ptrdiff_t(count));
  }
  if (!has_below()) return;
  for (const PageId id : device.planned) {
    const PageRef ref{config_.space->find(id.region), id.index};
    if (ref.live() && !recall_ahead(ref)) break;
  }
}

PrefetchQuery Mover::query_of(int index) const {
  const tiers::FramePool& hbm = devices_[std::size_t(index)]->hbm;
  const std::uint64_t budget = hbm.budget_bytes();
  return {index, devices_[std::size_t(index)]->config.hbm_bytes, budget - std::min(budget, hbm.used_bytes())};
}

// Pages that will have to leave before they are used again go while the link out has nothing else to do: who wants their frames then
// does not wait, and until then they can come back without a copy. What is still in use is offered again.
void Mover::give_up_ahead(int index) {
  DeviceState& device = *devices_[std::size_t(index)];
  const std::uint64_t now_us = config_.now_us();
  if ((worked_ || now_us - device.leaving_tried_us >= kLeavingPauseUs) && device.stores_bytes < kStoreBytesInFlight) {
    device.leaving_tried_us = now_us;
    device.leaving_waits = false;
    PageId next;
    for (std::size_t tried = 0; tried < kLeavingMax && device.stores_bytes < kStoreBytesInFlight; ++tried) {
      // One at a time: what is not tried now comes first the next time.
      if (config_.policy->leaves(query_of(index), {&next, 1}) == 0) break;
      const PageRef ref{config_.space->find(next.region), next.index};
      if (!ref.live()) continue;
      const auto evicted = evict(ref);
      if (!evicted) eviction_failed(ref, evicted.error());
      device.leaving_waits =
          device.leaving_waits || (evicted && (*evicted == Evicted::busy || *evicted == Evicted::leaving));
    }
  }
  plan_waits_ = plan_waits_ || (device.leaving_waits && (!in_flight_.empty() || !config_.streams->idle()));
}

// Yes: fetched, or nothing to fetch. Coming: on its way to host memory.
Mover::Started Mover::start_prefetch(PageRef ref) {
  Page& page = ref.page();
  const bool nothing_to_do = page.mapped == Mapped::frame || page.cpu_users != 0 || page.in_place ||
                             page.version == 0 || outlived(ref) ||
                             PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost);
  if (nothing_to_do) return Started::yes;
  if (page.mapped == Mapped::slot) {
    // Nothing that comes after it waits for a page in use.
    queue_promotion(ref);
    return Started::yes;
  }
  const Access access = page.last_write ? Access::write : Access::read;
  const Serving serving(*this, ref);
  Status started;
  Result<bool> here = true;
  if (page.frame == kNoFrame) {
    // Without a frame it is brought nearer all the same.
    const auto arrival = arrives(ref) ? arrive(ref, true, search_for(ref, Search::first_choices)) : Arrival::no_frame;
    if (arrival && *arrival == Arrival::busy) return Started::no_frame;
    const bool comes = arrival && *arrival != Arrival::no_frame;
    here = !arrival ? std::unexpected(arrival.error()) : comes ? Result<bool>(false) : recall(ref, Displaces::anything);
  }
  if (here && !*here) return Started::coming;
  if (!here && here.error().status == VMEM_ERROR_OUT_OF_MEMORY) return Started::no_frame;
  if (!here) {
    started = std::unexpected(here.error());
  } else if (page.frame != kNoFrame) {
    started = map_kept_frame(ref, access, arrived(ref));
  } else {
    auto grab = grab_frame(device_of(*ref.region), {ref.bytes(), search_for(ref, Search::first_choices)});
    if (!grab) {
      started = std::unexpected(grab.error());
    } else if (!grab->frame) {
      return Started::no_frame;
    } else {
      started = load_frame(ref, *grab->frame, access, false, true);
    }
  }
  if (started) return Started::yes;
  if (started.error().status == VMEM_ERROR_DEVICE_LOST) lose_device(started.error());
  if (std::has_single_bit(++prefetch_failures_)) {
    VMEM_LOG_WARN("prefetch at {:#x} failed: {} ({} such failures)", address_of(ref), started.error().message,
                  prefetch_failures_);
  }
  return Started::failed;
}

void Mover::promote() {
  for (std::size_t left = std::min(promotions_.size(), kPromotionsPerStep); left > 0; --left) {
    const PageRef ref = promotions_.front();
    const bool promoting = ref.live() && ref.page().promoting;
    if (promoting && !load_has_room(device_of(*ref.region), ref.bytes())) return;
    promotions_.pop_front();
    if (!promoting) continue;
    ref.page().promoting = false;
    auto promoted = promote_one(ref);
    const bool again =
        promoted && (*promoted == Promoted::busy || (*promoted == Promoted::no_frame && ref.page().pinned));
    if (again) queue_promotion(ref);
    if (promoted) continue;
    if (promoted.error().status == VMEM_ERROR_DEVICE_LOST) lose_device(promoted.error());
    VMEM_LOG_WARN("moving the page at {:#x} to HBM failed: {}", address_of(ref), promoted.error().message);
  }
}

void Mover::queue_promotion(PageRef ref) {
  if (ref.page().promoting || config_.only_asked) return;
  ref.page().promoting = true;
  promotions_.push_back(ref);
}

// Moves a page served in place into a frame. Looks first whether the page can go, so that none is evicted in vain.
Result<Mover::Promoted> Mover::promote_one(PageRef ref) {
  Page& page = ref.page();
  const bool lost = PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost);
  if (page.mapped == Mapped::nothing && page.pinned && !lost) {
    return start_prefetch(ref) == Started::yes ? Promoted::done : Promoted::no_frame;
  }
  if (page.mapped != Mapped::slot || page.in_place || page.kept || lost) return Promoted::no;
  start_tracking();
  if (page.cpu_users != 0) return Promoted::no;
  if (const Evicted why = held(ref, 0); why != Evicted::done)
    return why == Evicted::busy ? Promoted::busy : Promoted::no;
  if (running(page.wait) || !uses_complete(*ref.region, page)) return Promoted::busy;
  const Serving serving(*this, ref);
  VMEM_ASSIGN(const Grab grab,
              grab_frame(device_of(*ref.region), {ref.bytes(), search_for(ref, Search::first_choices)}));
  if (!grab.frame) return Promoted::no_frame;
  auto left = hide(ref);
  if (!left || *left != Evicted::done) {
    tiers::FramePool& hbm = device_of(*ref.region).hbm;
    hbm.give_back(*grab.frame, hbm.frame(*grab.frame).busy_until, nullptr);
    if (!left) return std::unexpected(left.error());
    return *left == Evicted::busy ? Promoted::busy : Promoted::no;
  }
  VMEM_TRY(load_frame(ref, *grab.frame, page.last_write ? Access::write : Access::read, false, false));
  return Promoted::done;
}

}  // namespace vmem::migration
