// Memory of programs that do not call vmem: allocations that are cached when freed, and launches that name whole allocations.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"
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

namespace {

// What a use of an address takes: the whole region, or of a shared one the page.
Span reached_in(const Region& region, std::uint32_t granule) {
  if (!region.shared) [[likely]]
    return region.whole;
  return Span({region.granule_of(region.page_at(granule))}, 1u << region.page_shift, Access::read);
}

// Such programs run far ahead of the GPU: what they used is to be given up as soon as that use is over, not when all that was queued
// after it is. An event costs as much as scanning the arguments of a launch, so where all fits there are fewer.
static_assert(PointerTables::kSmallMax == Suballocator::kLargestBytes);
constexpr std::uint32_t kLaunchesPerEpoch = 16, kLaunchesPerEpochIfAllFits = 256;
constinit thread_local NamedSpans named_spans;
// The calling thread's tables; none once its thread-local variables have ended, when others' destructors may still free memory.
struct CurrentTables {
  PointerTables* tables;
  bool ended;
};
constinit thread_local CurrentTables current_tables{nullptr, false};
struct ThreadTables {
  PointerTables tables;
  ThreadTables() { current_tables.tables = &tables; }
  ~ThreadTables() { current_tables = {nullptr, true}; }
};
PointerTables* thread_tables() {
  const CurrentTables& current = current_tables;
  if (current.tables != nullptr || current.ended) [[likely]]
    return current.tables;
  thread_local ThreadTables mine;
  return &mine.tables;
}
// What is freed no table leads to; a thread that has none yet need not make them for that.
void forget_tables(std::uintptr_t address, std::uint64_t bytes) {
  if (PointerTables* tables = current_tables.tables) tables->forget_tables(address, bytes);
}

bool out_of_memory(const Error& error) {
  return error.status == VMEM_ERROR_OUT_OF_MEMORY || error.status == VMEM_ERROR_ADDRESS_SPACE;
}

StreamId id_of(vmem_stream stream, std::uintptr_t context) {
  if (stream == nullptr) stream = CU_STREAM_LEGACY;
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  return {stream, is_default ? context : 0};
}

}  // namespace

StreamId Runtime::identify(vmem_stream stream, CUcontext context) {
  return id_of(stream, reinterpret_cast<std::uintptr_t>(context));
}

Result<void*> Runtime::allocate_undeclared(std::size_t bytes, int device, vmem_stream stream) {
  return allocate_undeclared(bytes, device, id_of(stream, context()));
}

Result<void*> Runtime::allocate_undeclared(std::size_t bytes, int device, const StreamId& stream) {
  if (bytes > space_->bytes()) {
    return fail(VMEM_ERROR_ADDRESS_SPACE, fmt::format("{} asked for, the address space is {}; raise --space",
                                                      format_bytes(bytes), format_bytes(space_->bytes())));
  }
  VMEM_ASSIGN(const int index, device_index(device));
  if (bytes - 1 < Suballocator::kLargestBytes) {
    VMEM_ASSIGN(const std::uintptr_t block, small_->allocate(index, bytes, stream));
    return reinterpret_cast<void*>(block);
  }
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, "0 bytes asked for; the least is 1");
  const std::uint64_t backed = mover_->undeclared_bytes(index, bytes);
  Region* region = freed_->take(index, backed, stream);
  if (region == nullptr) {
    auto fresh = allocate_region(backed, index, RegionKind::undeclared);
    // What is kept of other sizes makes room, as little of it as will do: programs use their blocks again.
    for (std::uint64_t kept = freed_->bytes(index); !fresh && kept > 0 && out_of_memory(fresh.error());) {
      kept -= std::min(kept, std::max(backed, kept / 8));
      VMEM_TRY(release_freed(index, kept));
      fresh = allocate_region(backed, index, RegionKind::undeclared);
    }
    if (!fresh && out_of_memory(fresh.error())) {
      VMEM_TRY(release_all_freed());
      VMEM_TRY(small_->trim());
      fresh = allocate_region(backed, index, RegionKind::undeclared);
    }
    VMEM_ASSIGN(region, std::move(fresh));
  } else {
    set_dead(*region, false);
    if (auto settled = options_.drained ? settle(*region) : Status{}; !settled) {
      set_dead(*region, true);
      freed_->put(*region, std::nullopt, {});
      return std::unexpected(settled.error());
    }
  }
  return reinterpret_cast<void*>(space_->address_of(region->first.index));
}

// Drained: all of the region becomes accessible, and what was, stays so.
Status Runtime::settle(Region& region) {
  migration::SettleRequest request;
  request.region = &region;
  VMEM_TRY(mover_->call(request));
  if (request.settled) return {};
  VMEM_ASSIGN(const auto drained, drain());
  migration::SettleRequest with_evictions;
  with_evictions.region = &region;
  with_evictions.idle = true;
  return mover_->call(with_evictions);
}

std::shared_lock<std::shared_mutex> Runtime::hold_back_moves() {
  if (!options_.drained) return {};
  const std::lock_guard after_moves(draining_mutex_);
  return std::shared_lock(drained_mutex_);
}

// Nothing runs, and no launch begins as long as the lock is held.
Result<std::unique_lock<std::shared_mutex>> Runtime::drain() {
  // Launches that begin meanwhile wait behind it: the other mutex alone would let them pass for ever.
  const std::lock_guard first(draining_mutex_);
  std::unique_lock lock(drained_mutex_);
  const gpu::RelaxedCapture relaxed(*driver_);
  for (const auto& device : devices_) {
    auto idle = synchronize(device->ordinal);
    if (idle) continue;
    Error error = idle.error();
    error.message = fmt::format(
        "--drained moves pages only while nothing runs: {}; is a stream capturing? Allocate before that, "
        "or raise --hbm",
        error.message);
    return std::unexpected(std::move(error));
  }
  return lock;
}

Status Runtime::free_undeclared(void* pointer, std::optional<vmem_stream> stream) {
  return free_undeclared(pointer, stream ? std::optional(id_of(*stream, context())) : std::nullopt);
}

Status Runtime::free_undeclared(void* pointer, const std::optional<StreamId>& stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(address));
  if (region->shared) {
    forget_tables(address, 1);
    VMEM_TRY(wait_for_others(address, stream ? stream->handle : nullptr));
    VMEM_TRY(refuse_held_block(address));
    return small_->free(address, stream.value_or(id_of(nullptr, stream ? 0 : context())));
  }
  if (!region->undeclared) return free(pointer, stream ? stream->handle : nullptr);
  if (address != space_->address_of(region->first.index) || region->dead.load()) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is not an allocation: it was freed, or lies inside one", address));
  }
  VMEM_ASSIGN(std::vector<std::uint64_t> others, marks_of_others(address));
  std::optional<StreamId> order = stream;
  // The per-thread stream is another one for every thread that names it.
  if (order && (!others.empty() || order->handle == CU_STREAM_PER_THREAD)) {
    VMEM_ASSIGN(const std::uint64_t own, mark(*order));
    others.push_back(own);
    order.reset();
  }
  forget_tables(address, region->bytes);
  if (!set_dead(*region, true))
    return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} was freed by another thread", address));
  // However much is kept: what is dead takes no room that anything else wants, and comes back where it is wanted (allocate).
  freed_->put(*region, order, std::move(others));
  return {};
}

// The allocation is freed: marks of what the other streams that use it had queued by now. Nothing changes where that fails.
Result<std::vector<std::uint64_t>> Runtime::marks_of_others(std::uintptr_t base) {
  if (!any_recorded_.load(std::memory_order_acquire)) return std::vector<std::uint64_t>{};
  const std::lock_guard lock(recorded_mutex_);
  const auto found = recorded_.find(base);
  if (found == recorded_.end()) return std::vector<std::uint64_t>{};
  std::vector<std::uint64_t> marks = found->second.marks;
  for (const StreamId& other : found->second.streams) {
    VMEM_ASSIGN(const std::uint64_t marked, mark(other));
    marks.push_back(marked);
  }
  recorded_.erase(found);
  return marks;
}

// Small blocks go from hand to hand in the order of one stream: that stream waits for the others that used the block.
Status Runtime::wait_for_others(std::uintptr_t base, CUstream stream) {
  if (!any_recorded_.load(std::memory_order_acquire)) return {};
  OtherUses uses;
  {
    const std::lock_guard lock(recorded_mutex_);
    const auto found = recorded_.find(base);
    if (found == recorded_.end()) return {};
    uses = std::move(found->second);
    recorded_.erase(found);
  }
  // Marks are those of streams that were closed, or per thread: nothing can be queued behind them, so they are waited for.
  for (const std::uint64_t mark : uses.marks) {
    while (!complete(mark)) std::this_thread::yield();
  }
  const auto& driver = *driver_;
  for (const StreamId& other : uses.streams) {
    CUevent event = nullptr;
    VMEM_TRY(driver.check(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    CUresult result = driver->cuEventRecord(event, other.handle);
    if (result == CUDA_SUCCESS) result = driver->cuStreamWaitEvent(stream, event, 0);
    (void)driver->cuEventDestroy(event);  // what waits for it goes on waiting
    VMEM_TRY(driver.check(result, "cuEventRecord"));
  }
  return {};
}

Status Runtime::record_stream(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto allocation = allocation_at(address);
  if (!allocation) return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} is in no live allocation", address));
  const StreamId id = id_of(stream, context());
  std::optional<std::uint64_t> now;
  if (id.handle == CU_STREAM_PER_THREAD) {
    VMEM_ASSIGN(now, mark(id));
  }
  const std::lock_guard lock(recorded_mutex_);
  any_recorded_.store(true, std::memory_order_release);  // a free comes after it
  OtherUses& uses = recorded_[allocation->base];
  if (now) {
    uses.marks.push_back(*now);
  } else if (std::ranges::find(uses.streams, id) == uses.streams.end()) {
    uses.streams.push_back(id);
  }
  return {};
}

Status Runtime::release_freed(int device, std::uint64_t most) {
  if (freed_->bytes(device) <= most) return {};
  std::unique_lock<std::shared_mutex> drained;
  if (options_.drained) {
    VMEM_ASSIGN(drained, drain());
  }
  Status outcome;
  for (BlockCache::Block& block : freed_->shrink(device, most)) {
    // Every use of it has been logged, or is in its stream's record, so there is no stream to name.
    migration::FreeRequest request;
    request.region = block.region;
    request.first_granule = block.region->first.index;
    auto freed = outcome ? mover_->call(request) : outcome;
    if (freed) continue;
    // A launch may be holding what it only fears to reach.
    if (freed.error().status != VMEM_ERROR_IN_USE) outcome = freed;
    freed_->put(*block.region, block.stream, std::move(block.marks));
  }
  return outcome;
}

Status Runtime::release_all_freed() {
  for (std::size_t i = 0; i < devices_.size(); ++i) VMEM_TRY(release_freed(int(i), 0));
  return {};
}

Status Runtime::close_undeclared(vmem_stream stream) {
  const StreamId id = id_of(stream, context());
  {
    const std::lock_guard lock(recorded_mutex_);
    for (auto& [address, uses] : recorded_) {
      const auto found = std::ranges::find(uses.streams, id);
      if (found == uses.streams.end()) continue;
      VMEM_ASSIGN(const std::uint64_t marked, mark(id));
      uses.streams.erase(found);
      uses.marks.push_back(marked);
    }
  }
  return freed_->close_stream(id);
}

// True if it was not so before. The mover finds the flag when it wants the pages; the log entry tells the policy, unless the thread is
// ending, which the policy will get over. While all fits nobody asks, and when the mover begins to track it looks at every region's flag:
// whoever changes one later than that sees here that it does.
bool Runtime::set_dead(Region& region, bool dead) {
  if (region.dead.exchange(dead, std::memory_order_seq_cst) == dead) return false;
  if (dead) region.life.fetch_add(1, std::memory_order_seq_cst);
  if (!mover_->tracks() && !region.tells_changes.load(std::memory_order_seq_cst)) return true;
  const auto slot = thread_slot();
  if (!slot) return true;
  const pagetable::LoggedUse changed{Span(region.first, region.granules, Access::none), {}, LoggedUse::Kind::changed};
  if ((*slot)->log.append(changed)) mover_->poke();
  return true;
}

// Publishes that the allocation (of a small one, its pages) is about to be used. What was freed no table leads to any more: a launch that
// does not name it cannot be meant to use it.
inline void Runtime::announce(std::uintptr_t address, bool feared, LaunchHolds& holds) {
  if (!space_->contains(address)) return;
  const std::uint32_t granule = space_->granule_at(address);
  Region* const region = space_->region_at(granule);
  if (region == nullptr) return;
  if (region->shared) return announce_small(*region, address, feared, holds);
  if (feared && region->dead.load(std::memory_order_relaxed)) return;
  announce_span(*region, granule, address, feared, holds);
}

void Runtime::announce_small(Region& region, std::uintptr_t address, bool feared, LaunchHolds& holds) {
  const auto small = small_->find(address);
  if (!small && feared) return;
  const std::uintptr_t base = small ? small->base : address;
  announce_span(region, space_->granule_at(base), base, feared, holds);
  if (!small) return;
  // It may lie across two pages.
  const std::uintptr_t last = base + small->bytes - 1;
  if (space_->granule_at(last) != space_->granule_at(base)) {
    announce_span(region, space_->granule_at(last), last, feared, holds);
  }
}

// The whole region, or of a shared one the page. What is read of it here may be another's by the time that it is held: `look` finds out.
inline void Runtime::announce_span(Region& region, std::uint32_t granule, std::uintptr_t address, bool feared,
                                   LaunchHolds& holds) {
  const Span span = reached_in(region, granule);
  if (!holds.named_->add(span.first())) return;
  const std::uint32_t hold = holds.slot_->announce(span, {address, 0});
  holds.add({.region = &region, .span = span, .hold = hold, .granule = granule, .feared = feared});
}

// From here on a free of what is held is refused, and its pages stay. What is not there any more is not held.
Runtime::Reach Runtime::look(LaunchHolds& holds) {
  ThreadSlot& slot = *holds.slot_;
  ThreadSlot::announced();
  const std::uint32_t own_device = 1u << holds.record_->device;
  Reach worst = Reach::hit;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < holds.held_.size(); ++i) {
    LaunchHolds::Held& held = holds.held_[i];
    Region& region = *held.region;
    const bool same = space_->region_at(held.granule) == &region &&
                      region.state.load(std::memory_order_seq_cst) == RegionState::live &&
                      reached_in(region, held.granule).word() == held.span.word();
    if (!same) [[unlikely]] {
      slot.withdraw(held.hold);
      continue;
    }
    // A life that has ended is not begun by a launch that may only fear to reach it.
    const std::uint32_t life = region.life.load(std::memory_order_seq_cst);
    held.life = region.dead.load(std::memory_order_seq_cst) ? life - 1 : life;
    const bool foreign = (region.devices.load(std::memory_order_acquire) & own_device) == 0;
    const bool at_hand = !foreign && region.unreadable.load(std::memory_order_seq_cst) == 0 &&
                         region.attention.load(std::memory_order_seq_cst) == 0;
    if (!at_hand) [[unlikely]]
      worst = std::max(worst, foreign ? Reach::miss : reach({&region, held.first(), held.count()}, Access::read));
    if (kept != i) [[unlikely]]
      holds.held_[kept] = held;
    ++kept;
  }
  holds.held_.resize(kept);
  return worst;
}

Status Runtime::begin_launch(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                             LaunchHolds& holds) {
  holds.clear();
  VMEM_ASSIGN(ThreadSlot* const slot, thread_slot());
  VMEM_ASSIGN(StreamRecord* const record, streams_->find(stream));
  VMEM_TRY(check_device(*record));
  holds.slot_ = slot;
  holds.record_ = record;
  PointerTables* const tables = thread_tables();
  if (tables == nullptr) return fail(VMEM_ERROR_UNSUPPORTED, "this thread is ending and can launch nothing any more");
  if (options_.strict) holds.alone_ = std::unique_lock(strict_mutex_);
  slot->count_acquire();
  const bool each = holds.each_ || options_.strict || mover_->tracks();
  // While all fits: one hold, and a look at what is named.
  if (!each) holds.everything_ = slot->publish(Span::everything(), {});
  const bool at_hand = find_all(addresses, *tables, fills_tables, holds);
  // Asked last: if it is so now, nothing that was looked at lay elsewhere than in HBM.
  holds.tracked_ = mover_->tracks();
  if (!each) {
    if (at_hand && !holds.tracked_) return {};
    slot->withdraw(std::exchange(holds.everything_, LaunchHolds::kNone));
  }
  holds.named_ = &named_spans;
  holds.named_->begin();
  for (const std::uintptr_t address : addresses) announce(address, false, holds);
  for (const std::uintptr_t address : holds.feared_) announce(address, true, holds);
  const Reach worst = look(holds);
  return worst == Reach::hit && !options_.strict ? Status{} : make_ready(worst, stream, holds);
}

bool Runtime::begin_launch_of_anything(vmem_stream stream, const std::optional<std::span<const std::uintptr_t>>& named,
                                       LaunchHolds& holds) {
  const PointerTables* const tables = thread_tables();
  if (tables == nullptr || (follows_tables() && tables->concern(options_.window, named))) return false;
  const auto slot = thread_slot();
  const auto record = streams_->find(stream);
  if (!slot || !record || (*record)->device < 0) return false;
  holds.clear();
  holds.slot_ = *slot;
  holds.record_ = *record;
  holds.tracked_ = false;
  holds.everything_ = (*slot)->publish(Span::everything(), {});
  if ((mover_->all_at_hand() >> (*record)->device & 1) != 0) [[likely]] {
    (*slot)->count_acquire();
    return true;
  }
  abandon_launch(holds);
  return false;
}

// Finds what the launch may reach besides what it names. Whether all of it is at hand.
bool Runtime::find_all(std::span<const std::uintptr_t> addresses, PointerTables& tables, bool fills_tables,
                       LaunchHolds& holds) {
  const bool follows = follows_tables();
  const std::uint32_t device = 1u << holds.record_->device;
  if (follows) tables.begin(options_.window, addresses);
  bool all = true;
  for (const std::uintptr_t address : addresses) {
    if (!space_->contains(address)) continue;
    Region* const region = space_->region_at(space_->granule_at(address));
    if (region == nullptr) continue;
    all = all && at_hand(*region, address, false, device);
    if (!region->shared || !follows) continue;
    if (const auto small = small_->find(address)) tables.name_small(address, small->base);
  }
  if (!follows) return all;
  tables.finish(fills_tables, [&](std::uintptr_t target) {
    if (!space_->contains(target)) return;
    holds.feared_.push_back(target);
    Region* const region = space_->region_at(space_->granule_at(target));
    all = all && (region == nullptr || at_hand(*region, target, true, device));
  });
  return all;
}

// A launch on the device may use the allocation as it is, or cannot mean it.
inline bool Runtime::at_hand(Region& region, std::uintptr_t address, bool feared, std::uint32_t device) const {
  if ((region.devices.load(std::memory_order_acquire) & device) == 0) return false;
  if (region.unreadable.load(std::memory_order_seq_cst) == 0 && region.attention.load(std::memory_order_seq_cst) == 0)
      [[likely]]
    return true;
  if (!region.shared) return feared && region.dead.load(std::memory_order_relaxed);
  const auto small = small_->find(address);
  if (!small) return feared;
  const std::uint32_t first = region.page_at(space_->granule_at(small->base));
  const std::uint32_t last = region.page_at(space_->granule_at(small->base + small->bytes - 1));
  return reach({&region, first, last - first + 1}, Access::read) == Reach::hit;
}

// Not all that is named is at hand. If it cannot be had, nothing is held.
Status Runtime::make_ready(Reach worst, vmem_stream stream, LaunchHolds& holds) {
  Status ready = options_.strict ? hide_others() : Status{};
  const bool misplaced = !options_.drained && !all_in_hbm(holds);
  if (ready && (worst == Reach::miss || options_.strict || misplaced)) ready = bring_in(holds, true);
  for (const auto& held : holds.all()) {
    if (ready) ready = wait_until_ready({held.region, held.first(), held.count()}, stream);
  }
  if (!ready) abandon_launch(holds);
  return ready;
}

Status Runtime::begin_recording(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds) {
  holds.clear();
  VMEM_ASSIGN(holds.slot_, thread_slot());
  VMEM_ASSIGN(holds.record_, streams_->find(stream));
  VMEM_TRY(check_device(*holds.record_));
  holds.named_ = &named_spans;
  holds.named_->begin();
  holds.tracked_ = false;  // nothing is used
  for (const std::uintptr_t address : addresses) announce(address, false, holds);
  if (look(holds) != Reach::miss) return {};
  auto mapped = bring_in(holds, false);
  if (!mapped) abandon_launch(holds);
  return mapped;
}

// `run`: now, not only recorded.
Status Runtime::bring_in(const LaunchHolds& holds, bool run) {
  std::vector<migration::AcquireRequest::Want> wants;
  for (const auto& held : holds.all()) {
    VMEM_TRY(open_to({held.region, held.first(), held.count()}, *holds.record_));
    wants.push_back(
        {.run = {held.region, held.first(), held.count()}, .leave_host = run && !held.feared && !options_.drained});
  }
  migration::AcquireRequest request;
  request.wants = wants;
  return mover_->call(request);
}

// What the launch does not hold gets out of its reach.
Status Runtime::hide_others() {
  migration::HideRequest request;
  return mover_->call(request);
}

void Runtime::abandon_launch(LaunchHolds& holds) {
  withdraw(holds);
  holds.clear();
}

void Runtime::withdraw(const LaunchHolds& holds) {
  if (holds.everything_ != LaunchHolds::kNone) holds.slot_->withdraw(holds.everything_);
  for (const auto& held : holds.all()) holds.slot_->withdraw(held.hold);
}

Status Runtime::end_launch(LaunchHolds& holds) {
  ThreadSlot& slot = *holds.slot_;
  StreamRecord& record = *holds.record_;
  const auto held = holds.all();
  bool log_filled = false;
  if (holds.tracked_) {
    const pagetable::Stamp stamp = record.open_stamp();
    log_filled = slot.log.append_all(held.size(), [&](std::size_t i) {
      const LoggedUse::Kind kind = held[i].feared ? LoggedUse::Kind::feared : LoggedUse::Kind::named;
      return LoggedUse{held[i].span, stamp, kind, held[i].life};
    });
  } else {
    record.note_untracked();
  }
  withdraw(holds);
  Status outcome;
  if (options_.strict) outcome = finish_alone(record);
  holds.clear();
  if (log_filled) mover_->poke();
  constexpr std::uint32_t kUses = StreamTable::kUsesPerEpoch;
  auto counted =
      streams_->count_use(record, mover_->evicts() ? kUses / kLaunchesPerEpoch : kUses / kLaunchesPerEpochIfAllFits);
  return outcome ? counted : outcome;
}

// Strict: waits for what is queued on the stream, and lets the next launch know that it is over. Another thread may be capturing.
Status Runtime::finish_alone(StreamRecord& record) const {
  const gpu::RelaxedCapture relaxed(*driver_);
  auto closed = streams_->close_epoch(record);
  VMEM_TRY(driver_->check((*driver_)->cuStreamSynchronize(record.handle), "cuStreamSynchronize"));
  return closed;
}

bool Runtime::is_small(std::uintptr_t address) const {
  const Region* region = space_->region_at(space_->granule_at(address));
  return region != nullptr && region->shared;
}

CUcontext Runtime::context_of(int ordinal) const {
  const auto found = std::ranges::find(devices_, ordinal, [](const auto& device) { return device->ordinal; });
  return found == devices_.end() ? nullptr : (*found)->context;
}

Status Runtime::synchronize(int ordinal) const {
  CUcontext const context = context_of(ordinal);
  if (context == nullptr) return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("device {} is not in use", ordinal));
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver_, context));
  return driver_->check((*driver_)->cuCtxSynchronize(), "cuCtxSynchronize");
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
  VMEM_TRY(release_all_freed());
  return small_->trim();
}

std::uint64_t Runtime::cached_bytes(int ordinal) const {
  const auto index = device_index(ordinal);
  return index ? freed_->bytes(*index) : 0;
}

bool Runtime::all_in_hbm(const LaunchHolds& holds) {
  return std::ranges::none_of(holds.all(), [](const LaunchHolds::Held& held) {
    if (held.feared) return false;
    for (std::uint32_t i = held.first(), end = i + held.count(); i < end; ++i) {
      if (pagetable::PageState(held.region->pages[i].state.load(std::memory_order_relaxed))
              .has(pagetable::PageState::kInPlace))
        return true;
    }
    return false;
  });
}

bool Runtime::in_place(std::uintptr_t address) const {
  const std::uint32_t granule = space_->granule_at(address);
  const Region* const region = space_->region_at(granule);
  if (region == nullptr) return false;
  const pagetable::Page& page = region->pages[region->page_at(granule)];
  return pagetable::PageState(page.state.load(std::memory_order_relaxed)).has(pagetable::PageState::kInPlace);
}

PointerTables* Runtime::pointer_tables() const { return follows_tables() ? thread_tables() : nullptr; }

std::vector<std::uintptr_t> Runtime::allocations_among(std::span<const std::uintptr_t> words) const {
  std::vector<std::uintptr_t> bases;
  for (const std::uintptr_t word : words) {
    if (const auto found = space_->contains(word) ? allocation_at(word) : std::nullopt) bases.push_back(found->base);
  }
  std::ranges::sort(bases);
  const auto repeated = std::ranges::unique(bases);
  bases.erase(repeated.begin(), repeated.end());
  return bases;
}

Status Runtime::keep(std::uintptr_t address) {
  VMEM_ASSIGN(Region* const region, live_region(address));
  migration::KeepRequest request;
  request.run = {region, 0, region->page_count};
  if (const auto small = region->shared ? small_->find(address) : std::nullopt) {
    const std::uint32_t first = region->page_at(space_->granule_at(small->base));
    const std::uint32_t last = region->page_at(space_->granule_at(small->base + small->bytes - 1));
    request.run = {region, first, last - first + 1};
  }
  return mover_->call(request);
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
  return Allocation{base_of(**region), (*region)->bytes, ordinal};
}

std::string Runtime::describe(std::uintptr_t address) const {
  const std::uint32_t granule = space_->granule_at(address);
  const Region* region = space_->region_at(granule);
  std::string text;
  if (region == nullptr || region->state.load() != RegionState::live) {
    text = "no allocation of vmem lies there";
  } else {
    const auto block = region->shared ? small_->find(address) : std::nullopt;
    const std::uintptr_t base = block ? block->base : base_of(*region);
    const std::uint64_t bytes = block ? block->bytes : region->bytes;
    const pagetable::PageState state(region->pages[region->page_at(granule)].state.load());
    const char* place = state.access() == Access::none              ? "is not accessible now"
                        : state.has(pagetable::PageState::kInPlace) ? "is accessible, in host memory or another GPU's"
                                                                    : "is accessible, in HBM";
    text =
        fmt::format("in the allocation of {} bytes at {:#x}{}, offset {}; its page of {} {}", bytes, base,
                    region->dead.load() ? " (freed)" : "", address - base, format_bytes(region->page_bytes()), place);
  }
  const std::uint64_t now_us = mover_->now_us();
  for (const auto& entry : mover_->journal().about(granule, 8)) {
    text += fmt::format("\n    {:.3f} ms ago: {}", double(now_us - entry.at_us) * 1e-3, words(entry.what));
  }
  return text;
}

}  // namespace vmem::runtime
