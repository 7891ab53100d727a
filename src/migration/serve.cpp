// Making pages usable: a page's way from a backing copy, or from nothing, to a mapping at its own address.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"
#include "gpu/memory_location.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using tiers::Direction;

namespace {

// In flight each way: enough to keep the link, or a disk, busy while the mover looks elsewhere, no more. A load started earlier than
// that gains nothing and evicts a page too soon. In pages of the size at hand, as the tier says, and at least in bytes; more than
// the usual only while that is no large part of host memory.
constexpr std::uint64_t kHostShare = 4;
constexpr std::uint64_t kBytesInFlight = std::uint64_t{64} << 20;

}  // namespace

std::optional<Status> AcquireRequest::advance(Mover& mover) {
  if (!began_us_) {
    began_us_ = mover.config_.now_us();
    ++mover.counters_.acquire_misses;
    worth_frames_ = worth_frames(mover);
    VMEM_TRY(check_writable(mover));
  }
  auto served = serve_wants(mover);
  if (served) mover.counters_.acquire_wait_us += mover.config_.now_us() - *began_us_;
  if (!served || *served) return served;
  // Nobody waits any more for what set out for it.
  for (const Want& want : wants) {
    for (std::uint32_t i = 0; i < want.run.count; ++i) Mover::not_wanted({want.run.region, want.run.first + i});
  }
  return served;
}

Status AcquireRequest::check_writable(const Mover& mover) const {
  for (const Want& want : wants) {
    if (want.access == Access::write && want.run.region->read_only)
      return std::unexpected(mover.read_only_error(*want.run.region));
  }
  return {};
}

// A kernel that reads host memory again and again runs at a fraction of its speed; one that needs more than there is has no choice.
bool AcquireRequest::worth_frames(const Mover& mover) const {
  std::uint64_t bytes = 0, budget = 0;
  for (const Want& want : wants) {
    if (!want.leave_host) continue;
    bytes += want.run.count * want.run.region->page_bytes();
    budget = mover.devices_[std::size_t(want.run.region->device)]->config.hbm_bytes;
  }
  return bytes <= budget / 4 * 3;
}

std::optional<Status> AcquireRequest::serve_wants(Mover& mover) {
  for (; want_ < wants.size(); ++want_, page_ = 0) {
    const Want& want = wants[want_];
    for (; page_ < want.run.count; ++page_) {
      const std::uint32_t index = want.run.first + page_;
      const bool discard = index - want.discard_first < want.discard_count;
      const pagetable::Page& page = want.run.region->pages[index];
      const bool was_in_place = page.mapped == Mapped::slot;
      const Mover::Effort effort{
          .evict = !no_frames_, .wait = may_wait_, .leave_host = want.leave_host && worth_frames_ && !no_frames_};
      // Asked of every range, so only for a page whose mapping may have to change.
      const bool allowed = PageState(page.state.load(std::memory_order_relaxed)).allows(want.access);
      const bool changes = was_in_place || (page.mapped != Mapped::nothing && !allowed);
      const std::uint32_t own = changes ? own_holds({want.run.region, index, 1}) : 0;
      mover.slots_in_use_ = false;
      auto served = mover.serve({want.run.region, index}, want.access, discard, effort, own);
      if (!served && mover.may_find_room_later(served.error())) served = Mover::Served::wait;
      if (!served) return std::unexpected(std::move(served).error());
      const bool slots_in_use = mover.slots_in_use_;  // what is looked at after this page has an answer of its own
      switch (*served) {
        case Mover::Served::usable:
          patience_.reset();
          below_.reset();
          continue;
        case Mover::Served::in_place:
          if (!counted_in_place_) {
            ++mover.counters_.in_place_acquires;
            VMEM_LOG_DEBUG("in place at {:#x}: {}", mover.address_of({want.run.region, index}),
                           may_wait_ ? "no frame can be had" : "waited in vain for one");
          }
          counted_in_place_ = true;
          no_frames_ = no_frames_ || !(was_in_place || want.run.region->pages[index].in_place);
          continue;
        case Mover::Served::wait:
          recall_ahead(mover);
          // Of slots that are all in use it cannot be told when one will be free: their users may wait for what is launched after this.
          if (slots_in_use && patience_.over_limit(mover, mover.config_.slot_wait_us))
            return std::unexpected(mover.full_error("a page below host memory", want.run.region->page_bytes()));
          if (below_.over(mover)) return std::unexpected(mover.unserved_error({want.run.region, index}));
          return std::nullopt;
        case Mover::Served::wait_frame:
        case Mover::Served::wait_use:
          break;
      }
      mover.counters_.acquire_waits += patience_.waiting() ? 0 : 1;
      if (!patience_.over(mover)) return std::nullopt;
      if (*served == Mover::Served::wait_use) return std::unexpected(mover.still_read_error({want.run.region, index}));
      may_wait_ = false;
      --page_;  // again, in place now
    }
  }
  return Status{};
}

// While a page is on its way from below host memory, those that come next can set out, too.
void AcquireRequest::recall_ahead(Mover& mover) const {
  if (!mover.has_below()) return;
  std::uint32_t page = page_ + 1;
  for (std::size_t i = want_; i < wants.size(); ++i, page = 0) {
    for (; page < wants[i].run.count; ++page) {
      const Mover::PageRef ref{wants[i].run.region, wants[i].run.first + page};
      const bool discard = ref.index - wants[i].discard_first < wants[i].discard_count;
      if (!discard && !mover.recall_ahead(ref)) return;
    }
  }
}

// How many of the caller's published ranges touch the page.
std::uint32_t AcquireRequest::own_holds(const PageRun& page) const {
  return std::uint32_t(std::count_if(wants.begin(), wants.end(), [&](const Want& want) {
    return want.run.region == page.region && page.first - want.run.first < want.run.count;
  }));
}

bool Patience::over(const Mover& mover, std::uint64_t times) {
  return over_limit(mover, times * mover.config_.acquire_wait_us);
}

bool Patience::over_limit(const Mover& mover, std::uint64_t limit_us) {
  const std::uint64_t now_us = mover.config_.now_us();
  if (since_us_ == 0) {
    since_us_ = now_us;
    return false;
  }
  // Progress elsewhere extends the wait, but not for ever: what it frees may go to others.
  if (now_us - since_us_ >= 10 * limit_us) return true;
  return now_us - std::max(since_us_, mover.last_progress_us_) >= limit_us;
}

Result<Mover::Served> Mover::serve(PageRef ref, Access access, bool discard, Effort effort, std::uint32_t own_holds) {
  Page& page = ref.page();
  const PageState state(page.state.load(std::memory_order_relaxed));
  if (state.has(PageState::kLost)) return std::unexpected(lost_error(ref, own_holds));
  if (page.mapped == Mapped::slot && effort.leave_host && !page.in_place)
    return leave_host(ref, access, effort, own_holds);
  if (state.allows(access)) return page.mapped == Mapped::slot ? Served::in_place : Served::usable;
  if (page.cpu_users != 0) return Served::wait;
  if (page.mapped == Mapped::nothing) return bring_in(ref, access, discard, effort);
  VMEM_ASSIGN(const bool writable, upgrade(ref, own_holds));
  if (!writable) return Served::wait_use;
  return page.mapped == Mapped::slot ? Served::in_place : Served::usable;
}

// Used in place until now. Once nobody uses it so any more, it is fetched as any other.
Result<Mover::Served> Mover::leave_host(PageRef ref, Access access, Effort effort, std::uint32_t own_holds) {
  VMEM_ASSIGN(const Evicted left, hide(ref, own_holds));
  if (left == Evicted::done) return bring_in(ref, access, false, effort);
  if (left == Evicted::busy && effort.wait) return Served::wait_frame;
  return serve(ref, access, false, {.evict = effort.evict, .wait = effort.wait, .leave_host = false}, own_holds);
}

// From read to write: a new version. Without protection the mapping allows writing already. False: the page is in use, and its
// mapping cannot be changed under a kernel.
Result<bool> Mover::upgrade(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  if (guarded(*ref.region)) {
    // Nobody may miss that the page has a load to wait for, as one could between withdrawing and giving back access.
    if (running(page.wait) || !uses_complete(*ref.region, page)) return false;
    const PageState before(page.state.load(std::memory_order_relaxed));
    if (withdraw_access(ref, own_holds) != Evicted::done) return false;
    if (auto changed = set_access(*ref.region, address_of(ref), Access::write); !changed) {
      publish(ref, before);
      return std::unexpected(changed.error());
    }
    publish(ref, before);
  }
  ++page.version;
  if (page.mapped == Mapped::slot) page.slot_version = page.version;
  const PageState state(page.state.load(std::memory_order_relaxed));
  // A load under way comes after the store already.
  const std::uint32_t flags = state.has(PageState::kPending) ? 0 : wait_for(ref, store_from_frame(page));
  publish(ref, state.with(Access::write).set(flags));
  return true;
}

// The copy out that still reads the frame a page was taken back with: what writes to the frame waits for it.
std::uint64_t Mover::store_from_frame(const Page& page) { return page.mapped == Mapped::slot ? 0 : page.store; }

Error Mover::still_read_error(PageRef ref) const {
  return {
      VMEM_ERROR_IN_USE, 0,
      fmt::format(
          "the page at {:#x} ({}) is held or used for reading and cannot become writable meanwhile, with the option "
          "protect; acquire it for VMEM_READ_WRITE in the first place, or release it first",
          address_of(ref), format_bytes(ref.bytes()))};
}

Result<Mover::Served> Mover::bring_in(PageRef ref, Access access, bool discard, Effort effort) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  const Serving serving(*this, ref);
  if (outlived(ref)) forget_contents(ref);
  const bool in_place_wanted = page.in_place && config_.in_place != nullptr;
  const bool kept = page.frame != kNoFrame && !(in_place_wanted && page.standby);
  if (!kept && page.version != 0 && !discard) {
    if (arrives(ref)) {
      // Who waits no longer makes room in host memory instead, and for that a page may have to go where this one would have gone.
      const bool waits = effort.wait || !effort.in_place;
      VMEM_ASSIGN(const Arrival arrival, arrive(ref, effort.evict && waits, search_for(ref, Search::until_busy)));
      const bool gpu_at_it = arrival == Arrival::checked || arrival == Arrival::busy;
      if (gpu_at_it && waits) return Served::wait_frame;
      if (arrival == Arrival::checked) give_up_check(ref);
      if (arrival == Arrival::on_its_way || arrival == Arrival::later) return Served::wait;
    }
    VMEM_ASSIGN(const bool here, recall(ref));
    if (!here) return Served::wait;
  }
  if (page.frame != kNoFrame && !(in_place_wanted && page.standby)) {
    VMEM_TRY(map_kept_frame(ref, access));
    return Served::usable;
  }
  if (in_place_wanted) {
    auto served = map_in_place(ref, access, discard);
    if (served || served.error().status != VMEM_ERROR_OUT_OF_MEMORY) return served;
    // Host memory is full; the place that was committed for the page is in HBM.
    if (page.frame != kNoFrame) {
      VMEM_TRY(map_kept_frame(ref, access));
      return Served::usable;
    }
  }
  const bool fetch = page.version != 0 && !discard;
  // Loads need the GPU's progress, too: their fingerprints wait for room among its kernels.
  if (fetch && !load_has_room(device, ref.bytes())) {
    if (effort.wait || !effort.in_place) return Served::wait_frame;
    return map_in_place(ref, access, discard);
  }
  Grab grab;
  if (effort.evict) {
    VMEM_ASSIGN(grab, grab_frame(device, {ref.bytes(), search_for(ref, Search::until_busy)}));
  } else {
    VMEM_ASSIGN(grab.frame, take_frame(device, ref.bytes()));
  }
  if (grab.frame) {
    VMEM_TRY(load_frame(ref, *grab.frame, access, discard, false));
    return Served::usable;
  }
  if ((grab.busy && effort.wait) || !effort.in_place) return Served::wait_frame;
  return map_in_place(ref, access, discard);
}

// The page's bytes are in a frame: come straight from a file, unmapped by a failed eviction, or in the free list and not reused yet.
Status Mover::map_kept_frame(PageRef ref, Access access, bool prefetch) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  VMEM_TRY(map_at(ref, device.hbm.frame(page.frame).handle, access));
  if (page.standby) {
    device.hbm.retake(page.frame);
    page.standby = false;
    config_.policy->page_arrived(ref.id(), false);
    left_host_memory(ref);
    ++counters_.eviction_cancels;
  }
  // An undeclared page may be written whatever was said, and a copy out that is under way must not see it.
  const bool may_write = access == Access::write || ref.region->undeclared || ref.region->shared;
  expose(ref, Mapped::frame, access, may_write ? store_from_frame(page) : 0, prefetch);
  if (prefetch) counters_.prefetched_bytes += ref.bytes();
  // What happens now need not be what a comparison under way has seen.
  if (comparing(page)) in_flight_.at(page.store).version = 0;
  retain(ref);
  return {};
}

Status Mover::load_frame(PageRef ref, std::uint32_t frame, Access access, bool discard, bool prefetch) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  std::uint64_t wait = device.hbm.frame(frame).busy_until;
  // Nobody says whether they write: what was last found written is taken to be written again, and now and then looked at.
  if (page.writes_believed != 0 && page.version != 0) {
    --page.writes_believed;
    access = Access::write;
  }
  if (page.version != 0 && !discard) {
    // Nothing is to be learned of what is known from an earlier load.
    const bool watch = access == Access::read && !guarded(*ref.region) && !comparable(ref);
    auto submitted = submit(ref, Direction::load, frame, wait, watch);
    if (!submitted) {
      device.hbm.give_back(frame, wait, nullptr);
      return std::unexpected(std::move(submitted).error());
    }
    wait = *submitted;
  }
  // The copy goes through the frame's window, so mapping and copying overlap.
  if (auto mapped = map_at(ref, device.hbm.frame(frame).handle, access); !mapped) {
    device.hbm.give_back(frame, wait, nullptr);
    return mapped;
  }
  page.frame = frame;
  expose(ref, Mapped::frame, access, wait, prefetch);
  retain(ref);
  config_.policy->page_arrived(ref.id(), prefetch);
  left_host_memory(ref);
  if (prefetch) counters_.prefetched_bytes += ref.bytes();
  return {};
}

// `watch`, of a load: the page's users say that they read only, and nothing stops them from writing. `watch`, of a store: such a
// page leaves, and is copied if somebody wrote.
Result<std::uint64_t> Mover::submit(PageRef ref, Direction direction, std::uint32_t frame, std::uint64_t after,
                                    bool watch) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.slot = page.slot;
  transfer.frame = device.hbm.frame(frame).window;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = direction;
  transfer.after = {event_of(after), event_of(page.store)};
  transfer.watch = watch && direction == Direction::load;
  transfer.if_changed = watch && direction == Direction::store;
  Transfers::Room room = Transfers::reserve({.region = ref.region,
                                             .page = ref.index,
                                             .bytes = ref.bytes(),
                                             .direction = direction,
                                             .from = {page.near, page.slot}});
  VMEM_TRY(near_of(page).tier->submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  const bool lent = page.near != 0;
  note(ref, direction == Direction::load ? Happened::loaded : Happened::stored);
  if (direction == Direction::load) {
    device.loads_bytes += ref.bytes();
    counters_.migrated_in_bytes += ref.bytes();
    counters_.peer_in_bytes += lent ? ref.bytes() : 0;
  } else {
    device.stores_bytes += ref.bytes();
    if (!transfer.if_changed) counters_.migrated_out_bytes += ref.bytes();
    if (!transfer.if_changed && lent) counters_.peer_out_bytes += ref.bytes();
  }
  worked_ = true;
  return transfer.id;
}

Result<Mover::Served> Mover::map_in_place(PageRef ref, Access access, bool discard) {
  Page& page = ref.page();
  if (config_.in_place == nullptr) return std::unexpected(full_error("a page that no HBM can be had for", ref.bytes()));
  if (spilling(page)) return Served::wait;
  if (page.version == 0 || discard) {
    VMEM_ASSIGN(const bool granted, need_slot(ref, Displaces::advised));
    if (!granted) return Served::wait;
  }
  VMEM_TRY(map_at(ref, near_of(page).in_place->handle(page.slot), access));
  drop_standby(ref);
  expose(ref, Mapped::slot, access, page.store, false);
  return Served::in_place;
}

void Mover::expose(PageRef ref, Mapped mapped, Access access, std::uint64_t wait, bool prefetch) {
  Page& page = ref.page();
  page.mapped = mapped;
  note(ref, mapped == Mapped::frame ? Happened::mapped_hbm
            : page.near == 0        ? Happened::mapped_host
                                    : Happened::mapped_peer);
  page.prefetched = prefetch;
  if (page.spilled != nullptr) {
    page.spilled->wanted = false;
    if (mapped == Mapped::slot) doubt_spilled(page);
  }
  if (mapped == Mapped::slot) came_to_host_memory(ref);
  // What was never written has nothing to be compared with when it leaves: a stray write to it counts as one from the start.
  if (access == Access::write || (page.version == 0 && !guarded(*ref.region))) {
    ++page.version;
    if (mapped == Mapped::slot) page.slot_version = page.version;
  }
  const std::uint32_t flags = (prefetch ? PageState::kNotify : 0) | wait_for(ref, wait);
  const std::uint32_t place = mapped == Mapped::slot ? PageState::kInPlace : 0;
  if (place != 0) start_tracking();
  publish(ref, PageState(0).with(access).set(flags | place));
}

// Work on the page begins after the transfer. The state flags that say so, for the caller to publish.
std::uint32_t Mover::wait_for(PageRef ref, std::uint64_t transfer) {
  Page& page = ref.page();
  page.wait = running(transfer) ? transfer : 0;
  if (page.wait == 0) return 0;
  page.ready.store(event_of(transfer), std::memory_order_release);
  pending_.push_back(ref);
  return PageState::kPending;
}

Status Mover::map_at(PageRef ref, CUmemGenericAllocationHandle handle, Access access) {
  const auto& driver = *config_.driver;
  const CUdeviceptr address = address_of(ref);
  VMEM_TRY(driver.check(driver->cuMemMap(address, ref.bytes(), 0, handle, 0), "cuMemMap"));
  ++counters_.maps;
  worked_ = true;
  auto accessible = set_access(*ref.region, address, guarded(*ref.region) ? access : Access::write);
  if (accessible) return {};
  // If this fails too, the context is lost or soon will be; the first failure is the one to report.
  (void)driver->cuMemUnmap(address, ref.bytes());
  return accessible;
}

Status Mover::unmap_at(PageRef ref) {
  const auto& driver = *config_.driver;
  VMEM_TRY(driver.check(driver->cuMemUnmap(address_of(ref), ref.bytes()), "cuMemUnmap"));
  note(ref, Happened::unmapped);
  ++counters_.unmaps;
  worked_ = true;
  return {};
}

Status Mover::set_access(const Region& region, CUdeviceptr address, Access access) {
  std::array<CUmemAccessDesc, 32> wanted{};
  std::size_t count = 0;
  const std::uint32_t mask = region.mapping_devices;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if ((mask >> i & 1) == 0) continue;
    wanted[count].location = gpu::on_device(devices_[i]->config.ordinal);
    wanted[count++].flags =
        access == Access::write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  }
  const auto& driver = *config_.driver;
  return driver.check(driver->cuMemSetAccess(address, region.page_bytes(), wanted.data(), count), "cuMemSetAccess");
}

CUevent Mover::event_of(std::uint64_t transfer) const {
  const auto found = in_flight_.find(transfer);
  return found == in_flight_.end() ? nullptr : found->second.done;
}

bool Mover::usual_room(std::uint64_t in_flight_bytes, std::uint64_t page_bytes) {
  return in_flight_bytes + page_bytes <= std::max(tiers::TierInfo{}.busy_pages * page_bytes, kBytesInFlight);
}

bool Mover::room_in_flight(const tiers::Tier& tier, std::uint64_t in_flight_bytes, std::uint64_t page_bytes) const {
  if (usual_room(in_flight_bytes, page_bytes)) return true;
  const std::uint64_t with_it = in_flight_bytes + page_bytes;
  return with_it <= tier.info().busy_pages * page_bytes &&
         with_it <= config_.backing->usage().budget_bytes / kHostShare;
}

}  // namespace vmem::migration
