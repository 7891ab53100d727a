#include "migration/use/use_tracker.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::kNoFrame;
using pagetable::LoggedUse;
using pagetable::Mapped;

namespace {

// It says something about launches, and nothing about memory.
bool has_no_place(const LoggedUse& use) {
  return use.kind == LoggedUse::Kind::launched || use.kind == LoggedUse::Kind::signalled;
}

}  // namespace

void UseTracker::drain() {
  core_.config.threads->drain([this](std::uint32_t slot, const LoggedUse& use) { on_use(slot, use); });
  core_.record([this](trace::Recorder& to) { record_heard(to); });
  bool fresh = false;
  core_.config.streams->take_untracked([&](Stamp use) {
    std::erase_if(untracked_, [&](Stamp known) { return known.stream() == use.stream(); });
    untracked_.push_back(use);
    fresh = untracked_before_ = true;
  });
  // Uses found after tracking began: from launches that had not seen that yet.
  if (fresh && residency_.tracks())
    std::ranges::for_each(residency_.live(), [this](Region* region) { used_untracked(*region); });
}

// Before the first eviction: adds the uses that launches and frees did not log. A launch in
// progress holds its pages until its use is noted.
void UseTracker::start_tracking() {
  if (residency_.tracks()) return;
  drain();
  residency_.begin_tracking();
  for (Region* region : residency_.live()) {
    if (untracked_before_) used_untracked(*region);
    if (region->undeclared) pages_changed(*region, 0, region->page_count);
  }
}

// Treats all untracked launches as uses of the region, but reports none to the policies.
void UseTracker::used_untracked(Region& region) {
  stamp_untracked(region);
  region.launched = true;
  const std::uint64_t life = region.life.load(std::memory_order_seq_cst);
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    if (!region.dead_page(i)) region.pages[i].life = life;
  }
}

void UseTracker::hear(trace::Recorder& to, std::uint32_t slot, const LoggedUse& use) {
  if (to.ended()) return;
  const Region* const region = has_no_place(use) ? nullptr : core_.config.space->region_at(use.span.first());
  const pagetable::RegionId id = region == nullptr ? pagetable::RegionId{} : region->id;
  if (!ran_within_memory([&] { heard_.push_back({slot, id, use}); })) to.lacks_memory();
}

// Threads' logs are read one after the other, but a block that one thread frees may be another's
// next one: the trace is told in order of time. Uses whose launch is not there yet wait for it.
void UseTracker::record_heard(trace::Recorder& to) {
  if (!heard_.empty() && !ran_within_memory([&] { find_pieces(); })) to.lacks_memory();
  if (!to.ended()) {
    for (const Piece& piece : pieces_) {
      for (std::size_t i = piece.first; i < piece.end; ++i) record(to, heard_[i]);
    }
    heard_.swap(unfinished_);
  } else {
    heard_.clear();
  }
  pieces_.clear();
  unfinished_.clear();
}

void UseTracker::find_pieces() {
  std::ranges::stable_sort(heard_, {}, &Heard::slot);
  std::size_t first = 0;
  for (std::size_t i = 0; i < heard_.size(); ++i) {
    const bool whole = has_no_place(heard_[i].use) || heard_[i].use.kind == LoggedUse::Kind::changed;
    if (whole) {
      pieces_.push_back({heard_[i].use.at_ns(), first, i + 1});
    } else if (i + 1 == heard_.size() || heard_[i + 1].slot != heard_[i].slot) {
      unfinished_.insert(unfinished_.end(), heard_.begin() + std::ptrdiff_t(first),
                         heard_.begin() + std::ptrdiff_t(i) + 1);
    } else {
      continue;
    }
    first = i + 1;
  }
  std::ranges::stable_sort(pieces_, {}, &Piece::at_ns);
}

void UseTracker::record(trace::Recorder& to, const Heard& heard) const {
  const auto& [slot, id, use] = heard;
  if (use.kind == LoggedUse::Kind::launched)
    return to.launched(slot, {use.stamp.stream(), use.device, use.stamp.epoch(), use.tracing_us}, use.what(),
                       use.at_ns());
  if (use.kind == LoggedUse::Kind::signalled)
    return to.signalled({slot, use.stamp.stream(), use.what(), use.discards}, use.at_ns());
  const Region* const region = core_.config.space->region_at(use.span.first());
  if (region == nullptr || region->id != id) return;
  if (region->shares()) return record_shared(to, slot, *region, use);
  if (use.kind == LoggedUse::Kind::changed) {
    const bool same = region->first.index == use.span.first() && region->granules == use.span.count();
    if (!same) return;  // ended since
    return to.region_changed(region->id.value, region->whole_life(use.life), use.dead(), use.at_ns());
  }
  to.used(slot, {.region = region->id.value,
                 .life = region->whole_life(use.life),
                 .granule = use.span.first(),
                 .granules = use.span.count(),
                 .writes = use.span.access() == Access::write,
                 .discards = use.discards,
                 .possible = use.kind == LoggedUse::Kind::possible});
}

void UseTracker::record_shared(trace::Recorder& to, std::uint32_t slot, const Region& region, const LoggedUse& use) {
  const trace::Recorder::Place place{
      .granule = use.span.first(), .granules = use.span.count(), .device = std::uint32_t(region.device)};
  const std::uint64_t life = region.whole_life(use.life);
  if (use.kind == LoggedUse::Kind::changed) return to.block_changed(place, life, use.dead(), use.at_ns());
  to.used_at(slot, place,
             {.life = life,
              .writes = use.span.access() == Access::write,
              .discards = use.discards,
              .possible = use.kind == LoggedUse::Kind::possible});
}

void UseTracker::on_use(std::uint32_t slot, const LoggedUse& use) {
  core_.record([&](trace::Recorder& to) { hear(to, slot, use); });
  if (has_no_place(use)) return;
  Region* region = core_.config.space->region_at(use.span.first());
  if (region == nullptr) return;  // freed since: the free carried the last stamp
  const std::uint32_t first = region->page_at(use.span.first());
  const std::uint32_t last = std::min(region->page_at(use.span.end() - 1), region->page_count - 1);
  const std::uint32_t count = last - first + 1;
  if (use.kind == LoggedUse::Kind::changed) return pages_changed(*region, first, count);
  const bool write = use.span.access() == Access::write;
  if (use.kind != LoggedUse::Kind::declared) region->launched = true;
  const bool whole = count == region->page_count && count > 8;
  if (whole) stamp(*region, use.stamp);
  const std::uint64_t life = region->whole_life(use.life);
  const bool worth_frames = count * region->page_bytes() <= devices_.of(*region).config.hbm_bytes / 2;
  for (std::uint32_t i = first; i <= last; ++i) {
    Page& page = region->pages[i];
    if (!whole) stamp(*region, page, use.stamp);
    // drain reads the threads' logs one after the other, so uses of an earlier life may come later.
    page.life = std::max(page.life, life);
    if (use.kind == LoggedUse::Kind::possible) continue;
    // Launching threads read the same cache line: write only on a change.
    if (page.last_write != write) page.last_write = write;
    if (page.prefetched) {
      page.prefetched = false;
      core_.counters.prefetched_used_bytes += region->page_bytes();
    }
    if (page.mapped != Mapped::slot) continue;
    if (worth_frames && !page.in_place) promotions_.add({region, i});
    near_.copy_used({region, i});
  }
  const bool told = use.kind != LoggedUse::Kind::possible;
  if (!told || region->state.load(std::memory_order_relaxed) != pagetable::RegionState::live) return;
  in_place_.used(use.span, use.stamp);
  core_.tell_policies(
      [&](Policy& policy) { policy.used({region->id, first, count, use.span.access(), use.stamp.stream()}); });
}

void UseTracker::pages_changed(Region& region, std::uint32_t first, std::uint32_t count) {
  if (!region.shares()) return changed_together(region, 0, region.page_count, region.extent.deaths_told[0]);
  for (std::uint32_t i = first; i < first + count; ++i) changed_together(region, i, 1, region.extent.deaths_told[i]);
}

// `told`: the last death of which the policies know.
void UseTracker::changed_together(Region& region, std::uint32_t first, std::uint32_t count, std::uint64_t& told) {
  const std::uint64_t death = region.last_death(first);
  const bool died = std::exchange(told, death) != death, dead = region.dead_page(first);
  const PageId page = region.page_id(first);
  core_.tell_policies([&](Policy& policy) {
    if (died) policy.pages_dead(page, count, true);
    policy.pages_dead(page, count, dead);
  });
  for (std::uint32_t i = first; i < first + count; ++i) {
    const PageRef ref{&region, i};
    // It may live again by now; a new user asks to keep it again.
    if (died) {
      contents_.keep_no_longer(ref);
      in_place_.page_died(ref);
    }
    const bool kept = ref.page().slot != kNoFrame || ref.page().spilled != nullptr;
    if (ref.page().mapped == Mapped::nothing && kept && Contents::of_earlier_life(ref)) contents_.forget(ref);
  }
}

void UseTracker::stamp_untracked(Region& region) {
  std::erase_if(untracked_, [this](Stamp use) { return core_.config.streams->complete(use); });
  for (const Stamp use : untracked_) stamp(region, use);
}

void UseTracker::stamp(Region& region, Page& page, Stamp use) {
  for (Stamp& known : page.uses) {
    if (known == use) return;
    if (known.empty() || known.stream() == use.stream() || core_.config.streams->complete(known)) {
      known = known.stream() == use.stream() && known.epoch() > use.epoch() ? known : use;
      return;
    }
  }
  // A third stream at once: the oldest use moves to the region, and counts for all its pages.
  stamp(region, page.uses[0]);
  page.uses[0] = page.uses[1];
  page.uses[1] = use;
}

void UseTracker::stamp(Region& region, Stamp use) {
  for (Stamp& known : region.uses) {
    if (known.stream() != use.stream() && !core_.config.streams->complete(known)) continue;
    known = known.stream() == use.stream() && known.epoch() > use.epoch() ? known : use;
    return;
  }
  region.uses.push_back(use);
}

bool UseTracker::uses_complete(Region& region, Page& page) {
  bool all = true;
  for (Stamp& use : page.uses) {
    if (!complete(use)) all = false;
  }
  for (const Stamp use : region.uses) {
    if (!complete(use)) all = false;
  }
  return all;
}

bool UseTracker::complete(Stamp stamp) {
  if (core_.config.streams->complete(stamp)) return true;
  const auto covered = core_.config.streams->cover(stamp);
  if (covered) return false;
  if (covered.error().status == VMEM_ERROR_DEVICE_LOST) {
    core_.lose_device(covered.error());
  } else if (std::has_single_bit(++cover_failures_)) {
    VMEM_LOG_WARN("cannot tell when work on a stream ends (was it destroyed without vmem_stream_close?): {}",
                  covered.error().message);
  }
  return false;
}

}  // namespace vmem::migration
