// The smaller requests: hints, host access to pages, figures, shutdown.
#include "migration/request.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

// Pins leave this share of the budget to everything else.
constexpr std::uint64_t kUnpinnedShare = 8;
constexpr std::uint8_t kCpuUsersMax = 255;  // what Page::cpu_users can count

std::uint64_t pin_limit(std::uint64_t budget) { return budget - budget / kUnpinnedShare; }

}  // namespace

std::optional<Status> PrefetchRequest::advance(Mover& mover) {
  VMEM_TRY(Mover::check_live(run));
  for (std::uint32_t i = 0; i < run.count; ++i) mover.asked_ahead_.push_back({run.region, run.first + i});
  return Status{};
}

std::optional<Status> AdviseRequest::advance(Mover& mover) {
  VMEM_TRY(Mover::check_live(run));
  Mover::DeviceState& device = mover.device_of(*run.region);
  const std::uint64_t page_bytes = run.region->page_bytes();
  const auto each = [&](auto&& change) {
    for (std::uint32_t i = 0; i < run.count; ++i) change(Mover::PageRef{run.region, run.first + i});
  };
  const auto prefer = [&](Preference preference) {
    each([&](Mover::PageRef ref) {
      mover.tell_policies([&](Policy& policy) { policy.page_prefers(ref.id(), preference); });
    });
  };
  const auto unpin = [&](Page& page) {
    if (page.pinned && !page.kept && !run.region->shared) device.pinned_bytes -= page_bytes;
    page.pinned = page.pinned && run.region->shared;
  };
  switch (advice) {
    case VMEM_ADVISE_NORMAL:
      prefer(Preference::normal);
      each([&](Mover::PageRef ref) {
        unpin(ref.page());
        ref.page().in_place = ref.page().read_mostly = false;
      });
      return Status{};
    case VMEM_ADVISE_READ_MOSTLY:
      each([](Mover::PageRef ref) { ref.page().read_mostly = true; });
      return Status{};
    case VMEM_ADVISE_PREFER_HBM:
      prefer(Preference::prefer_hbm);
      return Status{};
    case VMEM_ADVISE_PREFER_HOST:
      prefer(Preference::prefer_host);
      return Status{};
    case VMEM_ADVISE_PIN: {
      std::uint64_t more = 0;
      each([&](Mover::PageRef ref) { more += ref.page().pinned || ref.page().kept ? 0 : page_bytes; });
      VMEM_TRY(Mover::check_room_for_pins(device, more));
      device.pinned_bytes += more;
      each([&](Mover::PageRef ref) {
        ref.page().pinned = true;
        ref.page().in_place = false;
        mover.asked_ahead_.push_back(ref);
      });
      return Status{};
    }
    case VMEM_ADVISE_IN_PLACE:
      if (mover.config_.in_place == nullptr || run.region->shared) {
        return fail(VMEM_ERROR_UNSUPPORTED,
                    run.region->shared
                        ? "small allocations share pages, which are never served in place; allocate more than 1 MiB"
                        : "this machine's host memory cannot be mapped for the GPU; see `vmem doctor`");
      }
      each([&](Mover::PageRef ref) {
        unpin(ref.page());
        ref.page().in_place = true;
      });
      [[fallthrough]];
    case VMEM_ADVISE_EVICT: {
      Status first_failure;
      bool busy = false;
      each([&](Mover::PageRef ref) {
        auto evicted = mover.evict(ref);
        busy = busy || (evicted && *evicted == Mover::Evicted::busy);
        if (!evicted && first_failure) first_failure = std::unexpected(evicted.error());
      });
      // The first look had events recorded behind the last uses; a second one learns whether these are complete.
      if (first_failure && busy && !std::exchange(looked_, true)) return std::nullopt;
      return first_failure;
    }
    case VMEM_ADVICE_MAX_ENUM:
      break;
  }
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} is no advice", int(advice)));
}

// A slot for a page that is in no frame; with host memory full, a frame.
Result<Mover::Writable> Mover::place_for_writing(PageRef ref) {
  Page& page = ref.page();
  auto granted = need_slot(ref);
  if (granted && !*granted) return Writable::none_yet;
  if (granted) {
    drop_standby(ref);
    came_to_host_memory(ref);
    return Writable::slot;
  }
  if (granted.error().status != VMEM_ERROR_OUT_OF_MEMORY) return std::unexpected(granted.error());
  DeviceState& device = device_of(*ref.region);
  VMEM_ASSIGN(const Grab grab, grab_frame(device, {ref.bytes(), Search::until_busy, Frames::idle}));
  if (!grab.frame && !grab.busy) return std::unexpected(granted.error());
  if (!grab.frame) return Writable::none_yet;
  page.frame = *grab.frame;
  config_.policy->page_arrived(ref.id(), false);
  return Writable::frame;
}

std::optional<Status> OpenPageRequest::advance(Mover& mover) {
  VMEM_TRY(Mover::check_live(run));
  const Mover::PageRef ref{run.region, run.first};
  Page& page = ref.page();
  const std::uintptr_t address = mover.address_of(ref);
  if (write && run.region->read_only) return std::unexpected(mover.read_only_error(*run.region));
  if (PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost))
    return std::unexpected(mover.lost_error(ref, 0));
  // Small allocations share the page: neighbours may be held, in use and written meanwhile, and in its frame that hurts nobody.
  const bool shared = run.region->shared;
  if (write && !shared && mover.config_.threads->overlapping_holds(ref.begin(), ref.end()).named != 0) {
    return fail(VMEM_ERROR_IN_USE,
                fmt::format("the page at {:#x} is held by an acquire; release it before vmem_write", address));
  }
  mover.drain_uses();  // those of holds that ended before the look at them
  if (!uses_) {
    mover.stamp_untracked(*run.region);
    uses_.emplace(run.region->uses.begin(), run.region->uses.end());
    uses_->insert(uses_->end(), page.uses.begin(), page.uses.end());
  }
  if (page.cpu_users == kCpuUsersMax || (page.cpu_users != 0 && write && !shared)) return std::nullopt;
  if (mover.running(page.wait) || mover.running(page.store)) return std::nullopt;
  std::erase_if(*uses_, [&](Stamp use) { return mover.complete(use); });
  if (!uses_->empty() || (write && !shared && !mover.uses_complete(*run.region, page))) return std::nullopt;
  if (Mover::outlived(ref)) {
    if (page.mapped == Mapped::nothing) {
      mover.forget_contents(ref);
    } else if (write) {
      page.life = run.region->life.load(std::memory_order_seq_cst);
    }
  }
  bool in_frame = page.frame != kNoFrame && !page.standby;
  if (!in_frame && page.version != 0) {
    auto here = mover.recall(ref);
    if (!here && mover.may_find_room_later(here.error())) here = false;
    if (!here) return std::unexpected(std::move(here).error());
    if (!*here || (write && mover.spilling(page))) {
      if (below_.over(mover)) return std::unexpected(mover.unserved_error(ref));
      return std::nullopt;
    }
    if (page.spilled != nullptr) page.spilled->wanted = false;
  }
  if (write && !in_frame) {
    auto place = mover.place_for_writing(ref);
    if (!place && mover.may_find_room_later(place.error())) place = Mover::Writable::none_yet;
    if (!place) return std::unexpected(std::move(place).error());
    if (*place == Mover::Writable::none_yet) {
      if (below_.over(mover)) return std::unexpected(mover.unserved_error(ref));
      return std::nullopt;
    }
    in_frame = *place == Mover::Writable::frame;
    if (!in_frame) page.slot_version = page.version + 1;
  }
  if (write) ++page.version;
  ++page.cpu_users;
  if (in_frame) {
    device_window = mover.device_of(*run.region).hbm.frame(page.frame).window;
  } else if (page.slot_current() && page.version != 0) {
    const tiers::Tier& near = *mover.near_of(page).tier;
    const auto& slots = dynamic_cast<const tiers::InPlaceTier&>(near);
    const Access access = write ? Access::write : Access::read;
    host = slots.host_address(page.slot, access);
    if (host == nullptr) device_window = slots.device_address(page.slot, access);
  }
  return Status{};
}

std::optional<Status> ClosePageRequest::advance(Mover& mover) {
  --run.region->pages[run.first].cpu_users;
  mover.give_back_slot({run.region, run.first});
  return Status{};
}

std::optional<Status> QueryRequest::advance(Mover& mover) {
  VMEM_TRY(Mover::check_live({region, 0, 1}));
  const std::uint64_t page_bytes = region->page_bytes();
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    const Page& page = region->pages[i];
    const bool lost =
        PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost) && !mover.is_unread({region, i});
    const bool in_hbm = page.frame != kNoFrame && !page.standby;
    std::size_t& where = lost                                    ? info.bytes_lost
                         : in_hbm                                ? info.bytes_hbm
                         : page.near != 0 && page.slot_current() ? info.bytes_peer
                         : page.mapped == Mapped::slot           ? info.bytes_host_mapped
                         : page.slot_current()                   ? info.bytes_host
                         : region->read_only                     ? info.bytes_file
                         : page.version != 0                     ? info.bytes_nvme
                                                                 : info.bytes_unbacked;
    where += page_bytes;
  }
  return Status{};
}

std::optional<Status> StatisticsRequest::advance(Mover& mover) {
  vmem_statistics& out = statistics;
  const MoverCounters& in = mover.counters_;
  out.allocated_bytes = in.allocated_bytes;
  out.committed_bytes = in.committed_bytes;
  for (const auto& device : mover.devices_) {
    out.hbm_budget_bytes += device->hbm.budget_bytes();
    out.hbm_used_bytes += device->hbm.used_bytes();
    out.frames_created += device->hbm.frames_created();
  }
  const tiers::TierUsage host = mover.config_.backing->usage();
  out.host_budget_bytes = host.budget_bytes;
  out.host_used_bytes = host.used_bytes;
  for (std::size_t i = 1; i < mover.near_.size(); ++i) {
    const tiers::TierUsage lent = mover.near_[i].tier->usage();
    out.peer_budget_bytes += lent.budget_bytes;
    out.peer_used_bytes += lent.used_bytes;
  }
  if (mover.config_.spill != nullptr) {
    const tiers::TierUsage below = mover.config_.spill->usage();
    out.nvme_budget_bytes = below.budget_bytes;
    out.nvme_used_bytes = below.used_bytes;
  }
  for (const LentOut& lent : mover.config_.lent_out) {
    const LentOut::Held held = lent.held();
    out.lent_bytes += held.bytes;
    out.lent_overdue_bytes += held.overdue_bytes;
  }
  out.peer_in_bytes = in.peer_in_bytes;
  out.peer_out_bytes = in.peer_out_bytes;
  out.peer_returned_bytes = in.peer_returned_bytes;
  out.spilled_bytes = in.spilled_bytes;
  out.recalled_bytes = in.recalled_bytes;
  out.spills_dropped_bytes = in.spills_dropped_bytes;
  out.file_mapped_bytes = in.file_mapped_bytes;
  out.file_read_bytes = in.file_read_bytes;
  out.read_to_hbm_bytes = in.read_to_hbm_bytes;
  out.pages = in.pages;
  out.metadata_bytes = in.pages * sizeof(Page) + (mover.live_.size() + mover.ending_.size()) * sizeof(Region) +
                       mover.config_.policy->metadata_bytes() +
                       mover.spilled_.size() * (sizeof(pagetable::SpilledCopy) + sizeof(Mover::PageRef));
  for (const auto& [region, source] : mover.sources_)
    out.metadata_bytes += region->page_count * sizeof(pagetable::SpilledCopy);
  if (mover.config_.spill_policy) out.metadata_bytes += mover.config_.spill_policy->metadata_bytes();
  out.acquire_misses = in.acquire_misses;
  out.in_place_acquires = in.in_place_acquires;
  out.acquire_waits = in.acquire_waits;
  out.acquire_wait_us = in.acquire_wait_us;
  out.mover_busy_us = in.busy_us;
  out.migrated_in_bytes = in.migrated_in_bytes;
  out.migrated_out_bytes = in.migrated_out_bytes;
  out.dropped_bytes = in.dropped_bytes;
  out.prefetched_bytes = in.prefetched_bytes;
  out.prefetched_used_bytes = in.prefetched_used_bytes;
  out.evictions = in.evictions;
  out.eviction_cancels = in.eviction_cancels;
  out.maps = in.maps;
  out.unmaps = in.unmaps;
  out.stray_writes = in.stray_writes;
  return Status{};
}

std::optional<Status> QuiesceRequest::advance(Mover& mover) {
  const bool idle =
      mover.in_flight_.empty() && mover.ending_.empty() && mover.asked_ahead_.empty() && mover.requests_.empty();
  if (idle && !mover.worked_) return Status{};
  // What was asked for ahead waits for these, too: else it would be in flight.
  if (mover.only_stuck() && mover.requests_.empty()) return fail(VMEM_ERROR_TIMEOUT, mover.stuck_words());
  return std::nullopt;
}

std::optional<Status> HideRequest::advance(Mover& mover) {
  bool busy = false;
  for (Region* region : mover.live_) {
    for (std::uint32_t i = 0; i < region->page_count; ++i) {
      VMEM_ASSIGN(const Mover::Evicted hidden, mover.hide({region, i}));
      busy = busy || hidden == Mover::Evicted::busy;
    }
  }
  if (!busy) return Status{};
  // A check need not be fast, and a busy machine is no fault of the program's.
  if (!patience_.over(mover, 100)) return std::nullopt;
  return fail(
      VMEM_ERROR_IN_USE,
      "--strict runs one launch at a time, and work queued before this one does not end: on a stream in capture, "
      "or one that waits for the program");
}

Status Mover::check_room_for_pins(const DeviceState& device, std::uint64_t bytes) {
  const std::uint64_t budget = device.hbm.budget_bytes(), limit = pin_limit(budget);
  if (device.pinned_bytes + bytes <= limit) return {};
  return fail(
      VMEM_ERROR_OUT_OF_MEMORY,
      fmt::format("cannot pin {}: {} are pinned on device {} and {} of its {} of HBM may be; unpin something or "
                  "raise --hbm",
                  format_bytes(bytes), format_bytes(device.pinned_bytes), device.config.ordinal, format_bytes(limit),
                  format_bytes(budget)));
}

std::optional<Status> KeepRequest::advance(Mover& mover) {
  VMEM_TRY(Mover::check_live(run));
  if (run.region->undeclared && !run.region->tells_changes.load(std::memory_order_relaxed)) {
    // In this order: whoever changes it and does not see this yet is seen here.
    run.region->tells_changes.store(true, std::memory_order_seq_cst);
    mover.region_changed(*run.region);
  }
  Mover::DeviceState& device = mover.device_of(*run.region);
  const auto counted = [&](const Page& page) { return page.pinned || page.kept; };
  std::uint64_t more = 0;
  for (std::uint32_t i = page_; i < run.count; ++i)
    more += counted(run.region->pages[run.first + i]) ? 0 : run.region->page_bytes();
  VMEM_TRY(Mover::check_room_for_pins(device, more));
  for (; page_ < run.count; ++page_) {
    const Mover::PageRef ref{run.region, run.first + page_};
    Page& page = ref.page();
    if (page.kept) continue;
    if (page.mapped == Mapped::nothing) {
      VMEM_ASSIGN(const auto served, mover.bring_in(ref, Access::read, false, {true, may_wait_, false}));
      if (served == Mover::Served::wait_frame && patience_.over(mover)) may_wait_ = false;
      if (served != Mover::Served::usable && served != Mover::Served::in_place) return std::nullopt;
    }
    if (!counted(page)) device.pinned_bytes += ref.bytes();
    page.kept = true;
  }
  // Nobody will wait for what is still on its way.
  for (std::uint32_t i = 0; i < run.count; ++i) {
    if (!mover.running(run.region->pages[run.first + i].wait)) continue;
    if (!patience_.over(mover, 10)) return std::nullopt;
    return fail(VMEM_ERROR_TIMEOUT, "it is on its way to HBM, and the GPU makes no progress");
  }
  return Status{};
}

void Mover::keep_no_longer(PageRef ref) {
  Page& page = ref.page();
  if (!page.kept) return;
  page.kept = false;
  if (!page.pinned) device_of(*ref.region).pinned_bytes -= ref.bytes();
}

std::optional<Status> SettleRequest::advance(Mover& mover) {
  const auto outcome = [&] { return failed_ ? Status(std::unexpected(*failed_)) : Status{}; };
  const bool placed = !failed_ && place_region(mover);
  if (!placed && !failed_ && idle) return std::nullopt;
  if (!idle) {
    settled = placed;
    return outcome();
  }
  // Placed or failed, what was evicted for the region becomes accessible again.
  for (Region* each : mover.live_) {
    if (each->dead.load()) continue;
    for (std::uint32_t i = 0; i < each->page_count; ++i) {
      if (each->pages[i].mapped != Mapped::nothing) continue;
      VMEM_ASSIGN(const auto served, mover.bring_in({each, i}, Access::read, false, {false, false, false}));
      if (served == Mover::Served::wait) return std::nullopt;  // a place in host memory is being made
    }
  }
  if (!mover.pending_.empty()) return std::nullopt;
  settled = placed;
  return outcome();
}

// True: all of it is mapped. False: not yet, or failed_ says why not.
bool SettleRequest::place_region(Mover& mover) {
  for (; page_ < region->page_count; ++page_) {
    const Mover::PageRef ref{region, page_};
    if (ref.page().mapped != Mapped::nothing) continue;
    const auto served = mover.bring_in(ref, Access::read, false, {idle, idle && may_wait_, false, idle});
    if (served && (*served == Mover::Served::usable || *served == Mover::Served::in_place)) continue;
    if (!served) failed_ = served.error();
    if (served && *served == Mover::Served::wait_frame && idle && patience_.over(mover)) may_wait_ = false;
    return false;
  }
  return true;
}

std::optional<Status> PeerAccessRequest::advance(Mover& mover) {
  const auto& home = mover.device_of(*region).config;
  if ((home.peers >> device & 1) == 0) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("device {} cannot access the memory of device {}: no peer access between them",
                            mover.devices_[std::size_t(device)]->config.ordinal, home.ordinal));
  }
  for (const std::uint8_t lender : home.lenders) {
    if ((mover.config_.lent[lender].reached_by >> device & 1) != 0) continue;
    return fail(
        VMEM_ERROR_UNSUPPORTED,
        fmt::format("device {} cannot access {}, where pages of this allocation may lie; drop it from --peers",
                    mover.devices_[std::size_t(device)]->config.ordinal, mover.near_[lender + 1u].tier->info().name));
  }
  // Mappings made from now on allow the device; those that exist are opened here; launching threads learn of it last.
  const std::uint32_t before = region->mapping_devices;
  region->mapping_devices |= 1u << device;
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    const Page& page = region->pages[i];
    if (page.mapped == Mapped::nothing) continue;
    const Access access = PageState(page.state.load(std::memory_order_relaxed)).access();
    if (auto opened =
            mover.set_access(*region, mover.address_of({region, i}), mover.guarded(*region) ? access : Access::write);
        !opened) {
      region->mapping_devices = before;
      return opened;
    }
  }
  mover.count_openings(region->mapping_devices & ~before, 1);
  region->devices.store(region->mapping_devices, std::memory_order_release);
  return Status{};
}

std::optional<Status> LossReport::advance(Mover& mover) {
  const auto& driver = *mover.config_.driver;
  for (const auto& device : mover.devices_) {
    std::size_t free = 0, total = 0;
    CUresult result = driver->cuCtxPushCurrent(device->config.context);
    if (result == CUDA_SUCCESS) {
      result = driver->cuMemGetInfo(&free, &total);
      CUcontext popped = nullptr;
      (void)driver->cuCtxPopCurrent(&popped);
    }
    if (result != CUDA_SUCCESS) return std::unexpected(error);
  }
  return Status{};
}

std::optional<Status> EndAllRequest::advance(Mover& mover) {
  if (!started_) {
    if (!mover.config_.threads->synchronize() || mover.config_.threads->any_hold())
      return fail(VMEM_ERROR_IN_USE, "ranges are still acquired; release them before vmem_shutdown");
    started_ = true;
    while (!mover.live_.empty()) {
      if (auto ended = mover.end_region(*mover.live_.front(), {}); !ended) return ended;
    }
  }
  if (mover.ending_.empty() && mover.in_flight_.empty()) return Status{};
  if (!mover.only_stuck()) return std::nullopt;
  VMEM_LOG_ERROR("{}; their memory is left to the system", mover.stuck_words());
  return Status{};
}

}  // namespace vmem::migration
