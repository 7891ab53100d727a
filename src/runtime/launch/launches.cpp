#include "runtime/launch/launches.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "gpu/handles.hpp"
#include "runtime/launch/named_spans.hpp"

namespace vmem::runtime {

using migration::StreamRecord;
using migration::StreamTable;
using pagetable::Access;
using pagetable::LoggedUse;
using pagetable::Region;
using pagetable::RegionState;
using pagetable::SharedPages;
using pagetable::Span;
using pagetable::ThreadSlot;

namespace {

static_assert(PointerTables::kSmallMax == Suballocator::kLargestBytes);

// The live block of shared pages at a granule; empty: none, or the pages are not shared.
Span shared_block(const Region& region, std::uint32_t granule) {
  const SharedPages* const sharing = region.extent.sharing.load(std::memory_order_relaxed);
  return sharing == nullptr ? Span() : sharing->block_at(granule);
}

// The span that a use of an address counts for: the region, a block of shared pages, or one page of
// a slab. Empty: no block lies there.
Span span_of_use(const Region& region, std::uint32_t granule) {
  if (!region.has_strangers()) [[likely]]
    return region.whole;
  if (region.slab) return Span({region.granule_of(region.page_at(granule))}, 1u << region.page_shift, Access::read);
  return shared_block(region, granule);
}

// No live allocation is at the granule.
bool dead_at(const Region& region, std::uint32_t granule) {
  return region.shares() ? shared_block(region, granule).empty() : region.dead.load(std::memory_order_seq_cst);
}

// The life was counted up when the memory was freed; a use of dead memory is of the life before. A
// use through a table begins no new life.
std::uint32_t life_of_use(const Region& region, std::uint32_t granule) {
  return std::uint32_t(dead_at(region, granule) ? region.last_death(region.page_at(granule)) - 1
                                                : region.life.load(std::memory_order_seq_cst));
}

// These programs run far ahead of the GPU. Frequent epochs let the mover evict a page when its last
// use ends, not when all queued work ends. An event costs as much as scanning a launch's arguments,
// so epochs are longer while all fits.
constexpr std::uint32_t kLaunchesPerEpoch = 16, kLaunchesPerEpochIfAllFits = 256;
constinit thread_local NamedSpans named_spans;
// What events recorded for a trace took the thread since its last launch. All else that a trace
// costs a launch takes hardly longer than reading the clock.
constinit thread_local std::uint64_t tracing_ns = 0;

class Tracing {
 public:
  Tracing() : began_ns_(SteadyClock::now_ns()) {}
  ~Tracing() { tracing_ns += SteadyClock::now_ns() - began_ns_; }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

 private:
  const std::uint64_t began_ns_;
};

LoggedUse traced(LoggedUse launch) {
  launch.tracing_us = std::uint8_t(std::min<std::uint64_t>(255, (std::exchange(tracing_ns, 0) + 500) / 1000));
  return launch;
}

void clear(const LaunchHolds& holds) {
  if (holds.everything) return holds.slot->clear(*holds.everything);
  for (const auto& held : holds.held) holds.slot->clear(held.hold);
}

}  // namespace

// Publishes that the allocation (of a small one, its pages) is about to be used. Skips what was
// freed: the launch cannot mean to use it. Kernels are often given arrays of pointers of which they
// use the first few, and behind those lies what was on the stack.
inline void Launches::announce(std::uintptr_t address, Source source, LaunchHolds& holds) const {
  if (!parts_.space.contains(address)) return;
  const std::uint32_t granule = parts_.space.granule_at(address);
  Region* const region = parts_.space.region_at(granule);
  if (region == nullptr) return;
  if (region->slab) return announce_small(*region, address, source, holds);
  if (region->dead.load(std::memory_order_seq_cst)) return;
  announce_span(*region, granule, address, source, holds);
}

void Launches::announce_small(Region& region, std::uintptr_t address, Source source, LaunchHolds& holds) const {
  const auto small = parts_.small.find(address);
  if (!small && source == Source::table) return;
  const std::uintptr_t base = small ? small->base : address;
  announce_span(region, parts_.space.granule_at(base), base, source, holds);
  if (!small) return;
  // The block may cross a page boundary.
  const std::uintptr_t last = base + small->bytes - 1;
  if (parts_.space.granule_at(last) != parts_.space.granule_at(base)) {
    announce_span(region, parts_.space.granule_at(last), last, source, holds);
  }
}

// The region may end, or another begin here, before the hold is published: check_announced()
// checks. Under a hold on everything, the span is only noted.
inline void Launches::announce_span(Region& region, std::uint32_t granule, std::uintptr_t address, Source source,
                                    LaunchHolds& holds) {
  const Span span = span_of_use(region, granule);
  if (span.empty() || !holds.named->add(span.first())) return;
  holds.held.push_back({.region = &region, .span = span, .hold = 0, .granule = granule, .source = source});
  if (holds.everything) {
    holds.held.back().life = life_of_use(region, granule);
    return;
  }
  try {
    holds.held.back().hold = holds.slot->announce(span, {address, 0});
  } catch (...) {
    holds.held.pop_back();
    throw;
  }
}

// Clears holds on regions that ended, or began anew, before their hold was published.
Usability Launches::check_announced(LaunchHolds& holds) const {
  ThreadSlot& slot = *holds.slot;
  // From here on a free of held memory is refused, and its pages stay.
  ThreadSlot::fence_announced();
  const std::uint32_t own_device = 1u << holds.record->device;
  Usability worst = Usability::ready;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < holds.held.size(); ++i) {
    LaunchHolds::Held& held = holds.held[i];
    Region& region = *held.region;
    const bool same = parts_.space.region_at(held.granule) == &region &&
                      region.state.load(std::memory_order_seq_cst) == RegionState::live &&
                      span_of_use(region, held.granule).word() == held.span.word();
    if (!same) [[unlikely]] {
      slot.clear(held.hold);
      continue;
    }
    held.life = life_of_use(region, held.granule);
    const bool not_opened = (region.devices.load(std::memory_order_acquire) & own_device) == 0;
    const bool resident = !not_opened && region.unreadable.load(std::memory_order_seq_cst) == 0 &&
                          region.attention.load(std::memory_order_seq_cst) == 0;
    if (!resident) [[unlikely]]
      worst = std::max(worst, not_opened ? Usability::absent : usability(held.pages(), Access::read));
    if (kept != i) [[unlikely]]
      holds.held[kept] = held;
    ++kept;
  }
  holds.held.resize(kept);
  return worst;
}

Status Launches::begin(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                       LaunchHolds& holds) {
  holds.clear();
  try {
    VMEM_TRY(hold_and_make_ready(addresses, stream, fills_tables, holds));
    time_for_trace(holds);
    return {};
  } catch (...) {
    abandon(holds);
    throw;
  }
}

Status Launches::hold_and_make_ready(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                                     LaunchHolds& holds) {
  VMEM_ASSIGN(ThreadSlot* const slot, parts_.slots.current());
  VMEM_ASSIGN(StreamRecord* const record, parts_.streams.find(stream));
  VMEM_TRY(check_device(*record));
  holds.slot = slot;
  holds.record = record;
  PointerTables* const tables = thread_tables();
  if (tables == nullptr) return fail(VMEM_ERROR_UNSUPPORTED, "this thread is ending and can launch nothing any more");
  if (strict()) holds.alone = std::unique_lock(alone_);
  slot->count_acquire();
  const bool each = holds.hold_separately || strict() || parts_.mover.tracks();
  // While all fits: one hold on everything, and a check of the named allocations.
  if (!each) holds.everything = slot->publish(Span::everything(), {});
  const bool resident = find_all(addresses, *tables, fills_tables, holds);
  // Asked after the checks: nothing is evicted before tracking is on. If it is still off, nothing
  // that was checked has been evicted meanwhile.
  holds.logs_uses = parts_.mover.tracks();
  if (!each) {
    if (resident && !holds.logs_uses) {
      if (parts_.recorder != nullptr) [[unlikely]]
        note_for_trace(addresses, holds);
      return {};
    }
    slot->clear(*std::exchange(holds.everything, std::nullopt));
  }
  announce_all(addresses, holds);
  const Usability worst = check_announced(holds);
  // So that `end` needs no memory.
  if (holds.logs_uses) slot->log.reserve(slot->owed());
  if (worst == Usability::ready && !strict() && !holds.needs_hbm) [[likely]]
    return {};
  return make_ready(worst, stream, holds);
}

void Launches::announce_all(std::span<const std::uintptr_t> addresses, LaunchHolds& holds) const {
  holds.named = &named_spans;
  named_spans.begin();
  for (const std::uintptr_t address : addresses) announce(address, Source::named, holds);
  for (const std::uintptr_t address : holds.reachable) announce(address, Source::table, holds);
}

// The epoch's time begins behind all that the launch waits for.
void Launches::time_for_trace(const LaunchHolds& holds) const {
  if (!records()) [[likely]]
    return;
  if (holds.record->has_begin.load(std::memory_order_relaxed)) return;
  const Tracing tracing;
  parts_.streams.time_launch(*holds.record);
}

void Launches::note_signal(vmem_stream stream, std::uint32_t event, bool waits) const {
  const Tracing tracing;
  (void)ran_within_memory([&] {
    const auto slot = parts_.slots.current();
    const auto record = parts_.streams.find(stream);
    if (!slot || !record) return;
    (*slot)->log.reserve((*slot)->owed() + 1);
    const LoggedUse signal = LoggedUse::signal(SteadyClock::now_ns(), (*record)->open_stamp(), event, waits);
    if ((*slot)->log.append(signal)) parts_.mover.poke();
  });
}

// The launch's hold on everything suffices; what it names is only logged.
void Launches::note_for_trace(std::span<const std::uintptr_t> addresses, LaunchHolds& holds) const {
  announce_all(addresses, holds);
  holds.logs_uses = true;
  holds.slot->log.reserve(holds.slot->owed() + holds.held.size());
}

bool Launches::begin_if_all_resident(vmem_stream stream, const std::optional<std::span<const std::uintptr_t>>& named,
                                     LaunchHolds& holds) {
  const PointerTables* const tables = thread_tables();
  if (tables == nullptr || (follows_tables() && tables->may_matter(window_, named))) return false;
  if (parts_.recorder != nullptr && !named) return false;
  const auto slot = parts_.slots.current();
  const auto record = parts_.streams.find(stream);
  if (!slot || !record || (*record)->device < 0) return false;
  holds.clear();
  holds.slot = *slot;
  holds.record = *record;
  holds.logs_uses = false;
  holds.everything = (*slot)->publish(Span::everything(), {});
  if ((parts_.mover.all_resident() >> (*record)->device & 1) != 0) [[likely]] {
    if (parts_.recorder == nullptr || ran_within_memory([&] { note_for_trace(*named, holds); })) [[likely]] {
      (*slot)->count_acquire();
      time_for_trace(holds);
      return true;
    }
  }
  abandon(holds);
  return false;
}

// Finds what the launch may reach besides named allocations. True if the named and the reachable
// allocations can be used now.
bool Launches::find_all(std::span<const std::uintptr_t> addresses, PointerTables& tables, bool fills_tables,
                        LaunchHolds& holds) const {
  const bool follows = follows_tables() && holds.follow_tables;
  const std::uint32_t device = 1u << holds.record->device;
  if (follows) tables.begin(window_, addresses);
  bool all = true;
  for (const std::uintptr_t address : addresses) {
    if (!parts_.space.contains(address)) continue;
    Region* const region = parts_.space.region_at(parts_.space.granule_at(address));
    if (region == nullptr) continue;
    all = all && usable_now(*region, address, Source::named, device);
    if (!region->slab || !follows) continue;
    if (const auto small = parts_.small.find(address)) tables.name_small(address, small->base);
  }
  if (!follows) return all;
  tables.finish(fills_tables, [&](std::uintptr_t target) {
    if (!parts_.space.contains(target)) return;
    holds.reachable.push_back(target);
    Region* const region = parts_.space.region_at(parts_.space.granule_at(target));
    all = all && (region == nullptr || usable_now(*region, target, Source::table, device));
  });
  return all;
}

// True if a launch on the device need not ask the mover for the allocation: it can be used now, or
// it was freed.
inline bool Launches::usable_now(Region& region, std::uintptr_t address, Source source, std::uint32_t device) const {
  const bool opened = (region.devices.load(std::memory_order_acquire) & device) != 0;
  if (opened && region.unreadable.load(std::memory_order_seq_cst) == 0 &&
      region.attention.load(std::memory_order_seq_cst) == 0) [[likely]]
    return true;
  if (!region.slab) return dead_at(region, parts_.space.granule_at(address));
  if (!opened) return false;
  const auto small = parts_.small.find(address);
  if (!small) return source == Source::table;
  const std::uint32_t first = region.page_at(parts_.space.granule_at(small->base));
  const std::uint32_t last = region.page_at(parts_.space.granule_at(small->base + small->bytes - 1));
  return usability({&region, first, last - first + 1}, Access::read) == Usability::ready;
}

// Something held cannot be used yet, or the mode is strict. On failure nothing is held.
Status Launches::make_ready(Usability worst, vmem_stream stream, LaunchHolds& holds) {
  Status ready = strict() ? hide_others() : Status{};
  // Used in place: worth another try for HBM.
  const bool wants_hbm = !parts_.gate.drained() && (holds.needs_hbm ? !all_in_hbm(holds) : wants_frames(holds));
  if (ready && (worst == Usability::absent || strict() || wants_hbm)) ready = bring_in(holds, Work::runs);
  for (const auto& held : holds.held) {
    if (ready) ready = parts_.readiness.order_after_loads(held.pages(), stream);
  }
  if (!ready) abandon(holds);
  return ready;
}

Status Launches::begin_recording(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds) {
  holds.clear();
  try {
    return hold_and_map(addresses, stream, holds);
  } catch (...) {
    abandon(holds);
    throw;
  }
}

Status Launches::hold_and_map(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds) {
  VMEM_ASSIGN(holds.slot, parts_.slots.current());
  VMEM_ASSIGN(holds.record, parts_.streams.find(stream));
  VMEM_TRY(check_device(*holds.record));
  holds.named = &named_spans;
  named_spans.begin();
  holds.logs_uses = false;  // a recording uses nothing
  for (const std::uintptr_t address : addresses) announce(address, Source::named, holds);
  const Usability worst = check_announced(holds);
  if (worst != Usability::absent && (!holds.needs_hbm || all_in_hbm(holds))) return {};
  auto mapped = bring_in(holds, Work::recorded);
  if (!mapped) abandon(holds);
  return mapped;
}

Status Launches::bring_in(const LaunchHolds& holds, Work work) {
  std::vector<migration::AcquireRequest::Want> wants;
  const bool to_hbm = (work == Work::runs || holds.needs_hbm) && !parts_.gate.drained();
  for (const auto& held : holds.held) {
    VMEM_TRY(parts_.readiness.open_to(held.pages(), *holds.record));
    wants.push_back(
        {.run = held.pages(), .needs_hbm = holds.needs_hbm, .move_to_hbm = to_hbm && held.source == Source::named});
  }
  migration::AcquireRequest request;
  request.wants = wants;
  return parts_.mover.call(request);
}

// Unmaps everything that no launch holds.
Status Launches::hide_others() {
  migration::HideRequest request;
  return parts_.mover.call(request);
}

void Launches::abandon(LaunchHolds& holds) {
  clear(holds);
  holds.clear();
}

Status Launches::end(LaunchHolds& holds) {
  ThreadSlot& slot = *holds.slot;
  StreamRecord& record = *holds.record;
  const auto& held = holds.held;
  bool log_filled = false;
  if (holds.logs_uses) {
    const pagetable::Stamp stamp = record.open_stamp();
    const std::size_t entries = held.size() + (parts_.recorder == nullptr ? 0 : 1);
    log_filled = slot.log.append_all(entries, [&](std::size_t i) {
      if (i == held.size()) [[unlikely]]
        return traced(LoggedUse::launch(SteadyClock::now_ns(), stamp, record.device, holds.what));
      const LoggedUse::Kind kind = held[i].source == Source::table ? LoggedUse::Kind::possible : LoggedUse::Kind::named;
      return LoggedUse{held[i].span, stamp, kind, false, 0, 0, held[i].life};
    });
  }
  // Under a hold on everything, the mover may not track uses yet.
  if (!holds.logs_uses || holds.everything) record.note_untracked();
  clear(holds);
  const std::unique_lock alone = std::move(holds.alone);
  holds.clear();
  if (log_filled) parts_.mover.poke();
  Status outcome;
  if (strict()) outcome = finish_alone(record);
  // A launch counts as several uses, so that its epochs are shorter.
  constexpr std::uint32_t kUses = StreamTable::kUsesPerEpoch;
  Status counted;
  const std::uint32_t launches = parts_.mover.evicts() ? kLaunchesPerEpoch : kLaunchesPerEpochIfAllFits;
  if (records()) [[unlikely]] {
    const std::uint32_t most = std::min(launches, parts_.traced_epoch);
    const std::uint32_t uses = (kUses + most - 1) / most;
    std::optional<Tracing> tracing;
    if (StreamTable::closes(record, uses)) tracing.emplace();
    counted = parts_.streams.count_use(record, uses);
  } else {
    counted = parts_.streams.count_use(record, kUses / launches);
  }
  return outcome ? counted : outcome;
}

// Strict mode: waits for the stream's work and closes its epoch, so that the next launch sees it
// complete. Relaxed, since another thread may be capturing.
Status Launches::finish_alone(StreamRecord& record) const {
  const gpu::RelaxedCapture relaxed(parts_.driver);
  auto closed = parts_.streams.close_epoch(record);
  VMEM_TRY(parts_.driver.check(parts_.driver->cuStreamSynchronize(record.handle), "cuStreamSynchronize"));
  return closed;
}

}  // namespace vmem::runtime
