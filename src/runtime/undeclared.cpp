// Memory of programs that do not call vmem: allocations that are cached when freed, and launches that name whole allocations.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/log.hpp"
#include "runtime/pointer_tables.hpp"
#include "runtime/runtime.hpp"

namespace vmem::runtime {

using migration::StreamRecord;
using migration::StreamTable;
using pagetable::Access;
using pagetable::LoggedUse;
using pagetable::Region;
using pagetable::RegionState;
using pagetable::Span;
using pagetable::ThreadSlot;

namespace {

// Such programs run far ahead of the GPU: what they used is to be given up as soon as that use is over, not when all that was queued
// after it is. An event costs as much as scanning the arguments of a launch.
constexpr std::uint32_t kLaunchesPerEpoch = 8;
// Which spans the calling thread's current launch has named already. Forgets now and then: a span named twice does no harm.
class NamedSpans {
 public:
  void begin() { ++launch_; }
  bool add(std::uint32_t granule) {
    Entry& entry = entries_[(granule * 0x9e3779b9u) >> (32 - kBits)];
    if (entry.launch == launch_ && entry.granule == granule) return false;
    entry = {launch_, granule};
    return true;
  }

 private:
  static constexpr unsigned kBits = 9;
  struct Entry {
    std::uint64_t launch = 0;
    std::uint32_t granule = 0;
  };
  std::array<Entry, 1u << kBits> entries_{};
  std::uint64_t launch_ = 0;
};
thread_local NamedSpans named_spans;
thread_local PointerTables pointer_tables;

bool out_of_memory(const Error& error) { return error.status == VMEM_ERROR_OUT_OF_MEMORY; }

StreamId id_of(vmem_stream stream, std::uintptr_t context) {
  if (stream == nullptr) stream = CU_STREAM_LEGACY;
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  return {stream, is_default ? context : 0};
}

}  // namespace

Result<void*> Runtime::allocate_undeclared(std::size_t bytes, int device, vmem_stream stream) {
  if (bytes <= Suballocator::kLargestBytes) return allocate(bytes, device, stream);
  VMEM_ASSIGN(const int index, device_index(device));
  const std::uint64_t backed = mover_->undeclared_bytes(index, bytes);
  Region* region = freed_->take(index, backed, id_of(stream, context()));
  if (region == nullptr) {
    auto fresh = allocate_region(bytes, index, RegionKind::undeclared);
    // What is kept of other sizes makes room, as little of it as will do: programs use their blocks again.
    for (std::uint64_t kept = freed_->bytes(index); !fresh && kept > 0 && out_of_memory(fresh.error());) {
      kept -= std::min(kept, std::max(backed, kept / 8));
      VMEM_TRY(release_freed(index, kept));
      fresh = allocate_region(bytes, index, RegionKind::undeclared);
    }
    if (!fresh && out_of_memory(fresh.error())) {
      for (std::size_t i = 0; i < devices_.size(); ++i) VMEM_TRY(release_freed(int(i), 0));
      VMEM_TRY(small_->trim());
      fresh = allocate_region(bytes, index, RegionKind::undeclared);
    }
    VMEM_ASSIGN(region, std::move(fresh));
  } else {
    region->bytes = bytes;
    VMEM_TRY(set_dead(*region, false));
  }
  return reinterpret_cast<void*>(space_->address_of(region->first.index));
}

Status Runtime::free_undeclared(void* pointer, std::optional<vmem_stream> stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(address));
  if (region->shared) pointer_tables.forget_table(address);
  if (!region->undeclared) return free(pointer, stream.value_or(nullptr));
  if (address != space_->address_of(region->first.index) || region->dead.load()) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is not an allocation: it was freed, or lies inside one", address));
  }
  std::vector<std::uint64_t> others;
  {
    const std::lock_guard lock(recorded_mutex_);
    if (const auto found = recorded_.find(address); found != recorded_.end()) {
      others = std::move(found->second.marks);
      for (const StreamId& other : found->second.streams) {
        VMEM_ASSIGN(const std::uint64_t marked, mark(other));
        others.push_back(marked);
      }
      recorded_.erase(found);
    }
  }
  std::optional<StreamId> order;
  if (stream) order = id_of(*stream, context());
  if (order && !others.empty()) {
    VMEM_ASSIGN(const std::uint64_t own, mark(*order));
    others.push_back(own);
    order.reset();
  }
  VMEM_TRY(set_dead(*region, true));
  // However much is kept: what is dead takes no room that anything else wants, and comes back where it is wanted (allocate).
  freed_->put(*region, order, std::move(others));
  return {};
}

Status Runtime::record_stream(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(address));
  if (!region->undeclared) return {};  // small allocations: see Suballocator
  const StreamId id = id_of(stream, context());
  const std::lock_guard lock(recorded_mutex_);
  auto& streams = recorded_[space_->address_of(region->first.index)].streams;
  if (std::ranges::find(streams, id) == streams.end()) streams.push_back(id);
  return {};
}

Status Runtime::release_freed(int device, std::uint64_t most) {
  if (freed_->bytes(device) <= most) return {};
  for (Region* region : freed_->shrink(device, most)) {
    // Every use of it has been logged, so there is no stream to wait for.
    migration::FreeRequest request;
    request.region = region;
    request.first_granule = region->first.index;
    VMEM_TRY(mover_->call(request));
  }
  return {};
}

Status Runtime::close_undeclared(vmem_stream stream) {
  const StreamId id = id_of(stream, context());
  {
    const std::lock_guard lock(recorded_mutex_);
    for (auto& [address, uses] : recorded_) {
      if (std::erase(uses.streams, id) == 0) continue;
      VMEM_ASSIGN(const std::uint64_t marked, mark(id));
      uses.marks.push_back(marked);
    }
  }
  return freed_->close_stream(id);
}

// The mover finds the flag when it wants the pages; the log entry tells the policy.
Status Runtime::set_dead(Region& region, bool dead) {
  VMEM_ASSIGN(ThreadSlot* const slot, thread_slot());
  region.dead.store(dead, std::memory_order_seq_cst);
  if (dead) region.life.fetch_add(1, std::memory_order_seq_cst);
  if (slot->log.append({Span(region.first, region.granules, Access::none), {}, LoggedUse::Kind::changed}))
    mover_->poke();
  return {};
}

// Publishes the allocation (of a small one, its page) and looks whether it is in place.
Runtime::Reach Runtime::hold_for_launch(std::uintptr_t address, bool feared, LaunchHolds& holds) {
  const std::uint32_t granule = space_->granule_at(address);
  Region* region = space_->region_at(granule);
  if (region == nullptr) return Reach::hit;
  const Located located =
      region->shared ? Located{region, region->page_at(granule), 1} : Located{region, 0, region->page_count};
  const std::uint32_t first = region->granule_of(located.first);
  if (!named_spans.add(first)) return Reach::hit;
  // Published before the region is looked at: from here on a free of it is refused.
  ThreadSlot& slot = *holds.slot_;
  const std::uint32_t hold =
      slot.publish(Span({first}, located.count << region->page_shift, Access::read), {address, 0});
  if (space_->region_at(granule) != region || region->state.load(std::memory_order_seq_cst) != RegionState::live) {
    slot.withdraw(hold);
    return Reach::hit;
  }
  holds.add({hold, located.first, located.count, region, feared, region->life.load(std::memory_order_seq_cst)});
  const bool foreign = (region->devices.load(std::memory_order_acquire) >> holds.record_->device & 1) == 0;
  return foreign ? Reach::miss : reach(located, Access::read);
}

Status Runtime::begin_launch(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                             LaunchHolds& holds) {
  holds.clear();
  VMEM_ASSIGN(ThreadSlot* const slot, thread_slot());
  VMEM_ASSIGN(StreamRecord* const record, streams_->find(stream));
  VMEM_TRY(check_device(*record));
  holds.slot_ = slot;
  holds.record_ = record;
  named_spans.begin();
  pointer_tables.begin(options_.window);
  Reach worst = Reach::hit;
  for (const std::uintptr_t address : addresses) {
    if (!space_->contains(address)) continue;
    worst = std::max(worst, hold_for_launch(address, false, holds));
    if (const auto block = small_->find(address)) {
      pointer_tables.name_table(block->base);
    } else {
      pointer_tables.name_target(address);
    }
  }
  pointer_tables.finish(fills_tables,
                        [&](std::uintptr_t target) { worst = std::max(worst, hold_for_launch(target, true, holds)); });
  if (worst != Reach::hit) [[unlikely]] {
    if (auto ready = make_ready(holds, worst == Reach::miss, *record, stream); !ready) {
      abandon_launch(holds);
      return ready;
    }
  }
  slot->count_acquire();
  return {};
}

Status Runtime::make_ready(LaunchHolds& holds, bool miss, const StreamRecord& record, vmem_stream stream) {
  std::vector<Located> located;
  for (const auto& held : holds.all()) located.push_back({held.region, held.first, held.count});
  if (miss) {
    std::vector<migration::AcquireRequest::Want> wants(located.size());
    for (std::size_t i = 0; i < located.size(); ++i) {
      VMEM_TRY(open_to(located[i], record));
      wants[i].run = {located[i].region, located[i].first, located[i].count};
      wants[i].access = Access::read;
    }
    migration::AcquireRequest request;
    request.wants = wants;
    const auto began = std::chrono::steady_clock::now();
    VMEM_TRY(mover_->call(request));
    const auto waited = std::chrono::steady_clock::now() - began;
    launch_wait_us_.fetch_add(std::uint64_t(std::chrono::duration_cast<std::chrono::microseconds>(waited).count()),
                              std::memory_order_relaxed);
  }
  for (const Located& each : located) VMEM_TRY(wait_until_ready(each, stream));
  return {};
}

void Runtime::abandon_launch(LaunchHolds& holds) {
  for (const auto& held : holds.all()) holds.slot_->withdraw(held.hold);
  holds.clear();
}

Status Runtime::end_launch(LaunchHolds& holds) {
  ThreadSlot& slot = *holds.slot_;
  StreamRecord& record = *holds.record_;
  const pagetable::Stamp stamp = record.open_stamp();
  bool log_filled = false;
  for (const auto& held : holds.all()) {
    const LoggedUse::Kind kind = held.feared ? LoggedUse::Kind::feared : LoggedUse::Kind::named;
    log_filled = slot.log.append({slot.span(held.hold), stamp, kind, held.life}) || log_filled;
    slot.withdraw(held.hold);
  }
  holds.clear();
  if (log_filled) mover_->poke();
  return streams_->count_use(record, StreamTable::kUsesPerEpoch / kLaunchesPerEpoch);
}

bool Runtime::is_small(std::uintptr_t address) const {
  const Region* region = space_->region_at(space_->granule_at(address));
  return region != nullptr && region->shared;
}

CUcontext Runtime::context_of(int ordinal) const {
  const auto found = std::ranges::find(devices_, ordinal, [](const auto& device) { return device->ordinal; });
  return found == devices_.end() ? nullptr : (*found)->context;
}

Result<Runtime::Capacity> Runtime::capacity(int ordinal) {
  VMEM_ASSIGN(const int index, device_index(ordinal));
  migration::CapacityRequest request;
  request.device = index;
  VMEM_TRY(mover_->call(request));
  const std::uint64_t cached = freed_->bytes(index);
  return Capacity{std::min(request.free_bytes + cached, request.total_bytes), request.total_bytes};
}

Status Runtime::empty_cache() {
  for (std::size_t i = 0; i < devices_.size(); ++i) VMEM_TRY(release_freed(int(i), 0));
  return small_->trim();
}

std::uint64_t Runtime::cached_bytes(int ordinal) const {
  const auto index = device_index(ordinal);
  return index ? freed_->bytes(*index) : 0;
}

bool Runtime::all_in_hbm(const LaunchHolds& holds) {
  return std::ranges::none_of(holds.all(), [](const LaunchHolds::Held& held) {
    for (std::uint32_t i = held.first; i < held.first + held.count; ++i) {
      if (pagetable::PageState(held.region->pages[i].state.load(std::memory_order_relaxed))
              .has(pagetable::PageState::kInPlace))
        return true;
    }
    return false;
  });
}

void Runtime::note_pointer_table(std::uintptr_t table, std::span<const std::uintptr_t> targets) {
  const auto block = small_->find(table);
  if (!block) return;
  pointer_tables.begin(options_.window);
  pointer_tables.name_table(block->base);
  for (const std::uintptr_t target : targets) pointer_tables.name_target(target);
  pointer_tables.finish(true, [](std::uintptr_t) {});
}

std::optional<Runtime::Allocation> Runtime::allocation_at(std::uintptr_t address) const {
  auto region = live_region(address);
  if (!region || (*region)->dead.load()) return std::nullopt;
  const int ordinal = devices_[std::size_t((*region)->device)]->ordinal;
  if ((*region)->shared) {
    const auto block = small_->find(address);
    if (!block) return std::nullopt;
    return Allocation{block->base, block->bytes, ordinal};
  }
  return Allocation{space_->address_of((*region)->first.index), (*region)->bytes, ordinal};
}

}  // namespace vmem::runtime
