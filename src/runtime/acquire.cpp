// The hit path. In order, because the mover looks in the opposite order: publish the hold, look at the page states, work; log the
// use, clear the hold.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "base/memory_reserve.hpp"
#include "base/process.hpp"
#include "runtime/runtime.hpp"

namespace vmem::runtime {

using migration::StreamRecord;
using pagetable::Access;
using pagetable::Page;
using pagetable::PageState;
using pagetable::Span;
using pagetable::ThreadRegistry;
using pagetable::ThreadSlot;

namespace {

// Ranges longer than this many pages ask the region's counters first.
constexpr std::uint32_t kPagesLookedAt = 8;
constexpr std::uint32_t kAccessBits = VMEM_READ_WRITE | VMEM_DISCARD;

Access access_of(const vmem_range& range) { return (range.access & VMEM_WRITE) != 0 ? Access::write : Access::read; }

Status check_range(const vmem_range& range) {
  const bool known = (range.access & ~kAccessBits) == 0 && (range.access & VMEM_READ_WRITE) != 0;
  const bool discards_unread = (range.access & VMEM_DISCARD) == 0 || (range.access & VMEM_READ_WRITE) == VMEM_WRITE;
  if (known && discards_unread && range.reserved == 0) [[likely]]
    return {};
  if (range.reserved != 0) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("reserved is {} for the range at {}; set it to 0", range.reserved, range.ptr));
  }
  return fail(
      VMEM_ERROR_INVALID_VALUE,
      fmt::format(
          "access {:#x} for the range at {}: VMEM_READ, VMEM_WRITE, VMEM_READ_WRITE or VMEM_WRITE | VMEM_DISCARD",
          range.access, range.ptr));
}

// The calling thread's slot. Trivial, so that it is still there when the destructors of other thread-local variables call vmem.
struct CurrentSlot {
  const ThreadRegistry* registry;
  ThreadSlot* slot;
  bool ended;
};
constinit thread_local CurrentSlot current_slot{nullptr, nullptr, false};

// Gives the slot back when the thread ends. The registry outlives the slot whatever ends first.
struct SlotOwner {
  std::shared_ptr<ThreadRegistry> registry;
  void give_back() {
    if (current_slot.slot != nullptr) registry->yield(std::exchange(current_slot.slot, nullptr));
  }
  ~SlotOwner() {
    if (!process::forked()) give_back();  // in a child another thread of the parent may have held the registry's mutex
    current_slot = {nullptr, nullptr, true};
  }
};
thread_local SlotOwner slot_owner;

// The per-call list of positions; calls with many ranges pay for an allocation.
template <class T>
class CallArray {
 public:
  explicit CallArray(std::size_t count) {
    if (count > inline_.size()) more_.resize(count);
    data_ = {count > inline_.size() ? more_.data() : inline_.data(), count};
  }
  T& operator[](std::size_t i) { return data_[i]; }
  std::span<const T> first(std::size_t count) const { return data_.first(count); }
  std::span<T> all() { return data_; }

 private:
  std::array<T, 16> inline_;
  std::vector<T> more_;
  std::span<T> data_;
};

}  // namespace

Result<ThreadSlot*> Runtime::thread_slot() {
  if (current_slot.registry == threads_.get()) [[likely]]
    return current_slot.slot;
  if (current_slot.ended) return fail(VMEM_ERROR_UNSUPPORTED, "this thread is ending and can hold nothing any more");
  VMEM_TRY(ensure_context());
  ThreadSlot* slot = threads_->claim();
  if (slot == nullptr) return fail(VMEM_ERROR_UNSUPPORTED, "too many threads use vmem at once (4096)");
  slot_owner.give_back();
  slot_owner.registry = threads_;
  current_slot = {threads_.get(), slot, false};
  return slot;
}

// The calling thread's slot, null if it never had one or is ending.
const ThreadSlot* Runtime::known_slot() const {
  return current_slot.registry == threads_.get() ? current_slot.slot : nullptr;
}

// The default streams mean those of the current context: a thread without one gets the first device's, as with the CUDA runtime.
Status Runtime::ensure_context() const {
  CUcontext current = nullptr;
  VMEM_TRY(driver_->check((*driver_)->cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  if (current != nullptr) return {};
  return driver_->check((*driver_)->cuCtxSetCurrent(devices_.front()->context), "cuCtxSetCurrent");
}

Runtime::Reach Runtime::reach(const Located& located, Access access) {
  const pagetable::Region& region = *located.region;
  if (located.count > kPagesLookedAt || located.count == region.page_count) {
    const auto& short_of = access == Access::write ? region.unwritable : region.unreadable;
    if (short_of.load(std::memory_order_seq_cst) == 0 && region.attention.load(std::memory_order_seq_cst) == 0)
      return Reach::hit;
  }
  Reach worst = Reach::hit;
  for (std::uint32_t i = located.first; i < located.first + located.count; ++i) {
    const PageState state(region.pages[i].state.load(std::memory_order_seq_cst));
    if (!state.allows(access) || state.has(PageState::kLost)) return Reach::miss;
    if (state.has(PageState::kAttention)) worst = Reach::attention;
  }
  return worst;
}

Status Runtime::check_device(const StreamRecord& record) {
  if (record.device >= 0) [[likely]]
    return {};
  return fail(
      VMEM_ERROR_UNSUPPORTED,
      fmt::format("stream {} belongs to a device or context that vmem does not use; it uses the primary contexts "
                  "of the devices that the option devices names",
                  static_cast<void*>(record.handle.load())));
}

Status Runtime::check_stream(const StreamRecord& record, CUstream stream) const {
  VMEM_TRY(check_device(record));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult asked = (*driver_)->cuStreamIsCapturing(stream, &status);
  if (asked == CUDA_ERROR_INVALID_CONTEXT) {
    VMEM_TRY(ensure_context());
    asked = (*driver_)->cuStreamIsCapturing(stream, &status);
  }
  if (asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) [[likely]]
    return {};
  if (asked == CUDA_SUCCESS || asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("stream {} is capturing a graph; acquire around the graph's launch instead",
                            static_cast<void*>(stream)));
  }
  return driver_->check(asked, "cuStreamIsCapturing");
}

Status Runtime::acquire(std::span<const vmem_range> ranges, vmem_stream stream) {
  VMEM_ASSIGN(ThreadSlot* const slot, thread_slot());
  VMEM_ASSIGN(StreamRecord* const record, streams_->find(stream));
  VMEM_TRY(check_stream(*record, stream));
  CallArray<std::uint32_t> holds(ranges.size());
  CallArray<Located> located(ranges.size());
  std::size_t published = 0;
  Status outcome;
  const bool had = had_memory(
      [&] { outcome = acquire_each(ranges, stream, *slot, *record, holds.all(), located.all(), published); });
  if (!had || !outcome) {
    for (std::size_t i = 0; i < published; ++i) slot->withdraw(holds[i]);
    if (!had) throw std::bad_alloc();
    return outcome;
  }
  slot->count_acquire();
  return {};
}

// `published`: of the holds, however it ends.
Status Runtime::acquire_each(std::span<const vmem_range> ranges, CUstream stream, ThreadSlot& slot,
                             const StreamRecord& record, std::span<std::uint32_t> holds, std::span<Located> located,
                             std::size_t& published) {
  slot.log.reserve(slot.held() + ranges.size());  // what is held can be released without memory
  Reach worst = Reach::hit;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const vmem_range& range = ranges[i];
    VMEM_TRY(check_range(range));
    const auto address = reinterpret_cast<std::uintptr_t>(range.ptr);
    if (!space_->contains(address) || range.bytes == 0 || range.bytes > space_->base() + space_->bytes() - address) {
      auto wrong = locate(range.ptr, range.bytes);
      return wrong ? fail(VMEM_ERROR_INVALID_RANGE, "the range leaves the address space")
                   : Status(std::unexpected(wrong.error()));
    }
    // Published before the region is looked at: from here on a free of it is refused.
    const std::uint32_t first = space_->granule_at(address);
    const std::uint32_t last = space_->granule_at(address + range.bytes - 1);
    holds[i] = slot.publish(Span({first}, last - first + 1, access_of(range)), {address, range.bytes});
    ++published;
    auto found = locate(range.ptr, range.bytes);
    if (!found) return std::unexpected(std::move(found).error());
    located[i] = *found;
    const bool foreign = (found->region->devices.load(std::memory_order_acquire) >> record.device & 1) == 0;
    worst = foreign ? Reach::miss : std::max(worst, reach(*found, access_of(range)));
  }
  if (worst == Reach::hit) return {};
  return acquire_published(ranges, located, worst == Reach::miss, record, stream);
}

Status Runtime::acquire_published(std::span<const vmem_range> ranges, std::span<const Located> located, bool miss,
                                  const StreamRecord& record, CUstream stream) {
  if (miss) {
    for (const Located& each : located) VMEM_TRY(open_to(each, record));
    VMEM_TRY(bring_in(ranges, located));
  }
  for (const Located& each : located) VMEM_TRY(wait_until_ready(each, stream));
  return {};
}

Status Runtime::open_to(const Located& located, const StreamRecord& record) {
  if ((located.region->devices.load(std::memory_order_acquire) >> record.device & 1) != 0) return {};
  migration::PeerAccessRequest request;
  request.region = located.region;
  request.device = record.device;
  return mover_->call(request);
}

Status Runtime::bring_in(std::span<const vmem_range> ranges, std::span<const Located> located) {
  std::vector<migration::AcquireRequest::Want> wants(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const pagetable::Region& region = *located[i].region;
    wants[i].run = {located[i].region, located[i].first, located[i].count};
    wants[i].access = access_of(ranges[i]);
    if ((ranges[i].access & VMEM_DISCARD) == 0 || region.shared) continue;
    // Pages wholly inside the range; the last page of a region counts as whole when its used part is.
    const std::uint64_t offset =
        reinterpret_cast<std::uintptr_t>(ranges[i].ptr) - space_->address_of(region.first.index);
    const std::uint64_t end = offset + ranges[i].bytes;
    const std::uint64_t page = region.page_bytes();
    const auto first = std::uint32_t((offset + page - 1) / page);
    const std::uint32_t last = end == region.bytes ? region.page_count : std::uint32_t(end / page);
    wants[i].discard_first = first;
    wants[i].discard_count = last > first ? last - first : 0;
  }
  migration::AcquireRequest request;
  request.wants = wants;
  return mover_->call(request);
}

// Work on the stream waits for transfers under way into the pages; the mover hears of the first use of a page it fetched ahead.
Status Runtime::wait_until_ready(const Located& located, CUstream stream) {
  void* waited = nullptr;
  bool notify = false;
  for (std::uint32_t i = located.first; i < located.first + located.count; ++i) {
    Page& page = located.region->pages[i];
    const PageState state(page.state.load(std::memory_order_seq_cst));
    if (state.has(PageState::kNotify)) notify = take_notify(*located.region, page) || notify;
    if (!state.has(PageState::kPending)) continue;
    void* ready = page.ready.load(std::memory_order_acquire);
    if (ready == waited) continue;
    VMEM_TRY(
        driver_->check((*driver_)->cuStreamWaitEvent(stream, static_cast<CUevent>(ready), 0), "cuStreamWaitEvent"));
    waited = ready;
  }
  if (notify) mover_->poke();
  return {};
}

Status Runtime::release(std::span<const vmem_range> ranges, vmem_stream stream) {
  VMEM_ASSIGN(StreamRecord* const record, streams_->find(stream));
  VMEM_ASSIGN(ThreadSlot* const slot, thread_slot());
  CallArray<std::uint32_t> holds(ranges.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const ThreadSlot::Hold hold{reinterpret_cast<std::uintptr_t>(ranges[i].ptr), ranges[i].bytes};
    const std::int64_t found = slot->find(hold, holds.first(i));
    if (found < 0) {
      return fail(
          VMEM_ERROR_NOT_ACQUIRED,
          fmt::format(
              "this thread holds no range of {} bytes at {}; a range is released as it was acquired, by the thread "
              "that acquired it",
              ranges[i].bytes, ranges[i].ptr));
    }
    holds[i] = std::uint32_t(found);
  }
  slot->log.reserve(ranges.size());  // a use is logged, and its hold withdrawn, or neither
  const pagetable::Stamp stamp = record->open_stamp();
  bool log_filled = false;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Span span = slot->span(holds[i]);
    const pagetable::Region* const region = space_->region_at(span.first());
    const std::uint32_t life = region == nullptr ? 0 : region->life.load(std::memory_order_relaxed);
    log_filled = slot->log.append({span, stamp, pagetable::LoggedUse::Kind::declared, life}) || log_filled;
    slot->withdraw(holds[i]);
  }
  if (log_filled) mover_->poke();
  return streams_->count_use(*record);
}

}  // namespace vmem::runtime
