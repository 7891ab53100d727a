#include "runtime/explicit/hit_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>
#include <vector>

#include "base/clock.hpp"
#include "base/memory_reserve.hpp"

namespace vmem::runtime {

using migration::StreamRecord;
using pagetable::Access;
using pagetable::Span;
using pagetable::ThreadSlot;

namespace {

constexpr std::uint32_t kAccessBits = VMEM_READ_WRITE | VMEM_DISCARD;

Access access_of(const vmem_range& range) { return (range.access & VMEM_WRITE) != 0 ? Access::write : Access::read; }

// Whether none of the old contents of the granules matters that the range touches.
bool discards_all(const vmem_range& range, const pagetable::AddressSpace& space, const pagetable::Region& region) {
  if ((range.access & VMEM_DISCARD) == 0) return false;
  const std::uint64_t first = reinterpret_cast<std::uintptr_t>(range.ptr) - space.address_of(region.first.index);
  const std::uint64_t end = first + range.bytes;
  return first % pagetable::kGranuleBytes == 0 && (end % pagetable::kGranuleBytes == 0 || end >= region.bytes);
}

// What a trace needs to know of a use. Where blocks share pages, it names the block.
void complete_for_trace(const vmem_range& range, const pagetable::AddressSpace& space, const pagetable::Region& region,
                        pagetable::LoggedUse& use) {
  use.discards = discards_all(range, space, region);
  const pagetable::SharedPages* const sharing = region.extent.sharing.load(std::memory_order_relaxed);
  if (sharing == nullptr) return;
  const auto address = reinterpret_cast<std::uintptr_t>(range.ptr);
  const Span block = sharing->block_at(space.granule_at(address));
  if (block.empty()) return;
  use.discards = use.discards && space.granule_at(address) == block.first() &&
                 space.granule_at(address + range.bytes - 1) + 1 == block.end();
  use.span = Span({block.first()}, block.count(), use.span.access());
}

Status check_range(const vmem_range& range) {
  const bool known = (range.access & ~kAccessBits) == 0 && (range.access & VMEM_READ_WRITE) != 0;
  const bool discard_ok = (range.access & VMEM_DISCARD) == 0 || (range.access & VMEM_READ_WRITE) == VMEM_WRITE;
  if (known && discard_ok && range.reserved == 0) [[likely]]
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

// One value per range of a call; beyond 16 ranges it allocates memory.
template <class T>
class CallArray {
 public:
  explicit CallArray(std::size_t count) {
    if (count > inline_.size()) more_.resize(count);
    data_ = {count > inline_.size() ? more_.data() : inline_.data(), count};
  }
  CallArray(const CallArray&) = delete;
  CallArray& operator=(const CallArray&) = delete;
  T& operator[](std::size_t i) { return data_[i]; }
  std::span<const T> first(std::size_t count) const { return data_.first(count); }

 private:
  std::array<T, 16> inline_;
  std::vector<T> more_;
  std::span<T> data_;
};

}  // namespace

struct HitPath::Call {
  const std::span<const vmem_range> ranges;
  const CUstream stream;
  ThreadSlot& slot;
  const StreamRecord& record;
  CallArray<std::uint32_t> holds{ranges.size()};
  std::size_t published = 0;  // the first so many of `holds` are published
  Usability worst = Usability::ready;
};

Status HitPath::check_stream(const StreamRecord& record, CUstream stream) const {
  VMEM_TRY(check_device(record));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult asked = parts_.driver->cuStreamIsCapturing(stream, &status);
  if (asked == CUDA_ERROR_INVALID_CONTEXT) {
    VMEM_TRY(parts_.slots.ensure_context());
    asked = parts_.driver->cuStreamIsCapturing(stream, &status);
  }
  if (asked == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) [[likely]]
    return {};
  if (asked == CUDA_SUCCESS || asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("stream {} is capturing a graph; acquire around the graph's launch instead",
                            static_cast<void*>(stream)));
  }
  return parts_.driver.check(asked, "cuStreamIsCapturing");
}

Status HitPath::acquire(std::span<const vmem_range> ranges, vmem_stream stream) {
  VMEM_ASSIGN(ThreadSlot* const slot, parts_.slots.current());
  VMEM_ASSIGN(StreamRecord* const record, parts_.streams.find(stream));
  VMEM_TRY(check_stream(*record, stream));
  Call call{.ranges = ranges, .stream = stream, .slot = *slot, .record = *record};
  Status outcome;
  const bool had = ran_within_memory([&] { outcome = publish_each(call); });
  if (!had || !outcome) {
    for (std::size_t i = 0; i < call.published; ++i) slot->clear(call.holds[i]);
    if (!had) throw std::bad_alloc();
    return outcome;
  }
  slot->count_acquire();
  return {};
}

Status HitPath::publish_each(Call& call) const {
  // So that a release normally needs no memory.
  call.slot.log.reserve(call.slot.owed() + 2 * call.ranges.size());
  for (std::size_t i = 0; i < call.ranges.size(); ++i) VMEM_TRY(publish(call, i));
  return call.worst == Usability::ready ? Status{} : make_ready(call);
}

inline Status HitPath::publish(Call& call, std::size_t i) const {
  const vmem_range& range = call.ranges[i];
  const pagetable::AddressSpace& space = parts_.space;
  VMEM_TRY(check_range(range));
  const auto address = reinterpret_cast<std::uintptr_t>(range.ptr);
  if (!space.contains(address) || range.bytes == 0 || range.bytes > space.base() + space.bytes() - address) {
    // Outside: locate() says why.
    auto wrong = parts_.addresses.locate(range.ptr, range.bytes);
    return wrong ? fail(VMEM_ERROR_INVALID_RANGE, "the range leaves the address space")
                 : Status(std::unexpected(wrong.error()));
  }
  // Published before the check of the region: from here on a free of the region is refused.
  const std::uint32_t first = space.granule_at(address);
  const std::uint32_t last = space.granule_at(address + range.bytes - 1);
  call.holds[i] = call.slot.publish(Span({first}, last - first + 1, access_of(range)), {address, range.bytes});
  ++call.published;
  auto found = parts_.addresses.locate(range.ptr, range.bytes);
  if (!found) return std::unexpected(std::move(found).error());
  const bool not_opened = (found->region->devices.load(std::memory_order_acquire) >> call.record.device & 1) == 0;
  call.worst = not_opened ? Usability::absent : std::max(call.worst, usability(*found, access_of(range)));
  return {};
}

// The holds keep the regions live, so locate() finds the same pages as before.
Status HitPath::make_ready(const Call& call) const {
  if (call.worst == Usability::absent) VMEM_TRY(bring_in(call));
  for (const vmem_range& range : call.ranges) {
    VMEM_ASSIGN(const PageRun run, parts_.addresses.locate(range.ptr, range.bytes));
    VMEM_TRY(parts_.readiness.order_after_loads(run, call.stream));
  }
  return {};
}

Status HitPath::bring_in(const Call& call) const {
  std::vector<migration::AcquireRequest::Want> wants;
  for (const vmem_range& range : call.ranges) {
    VMEM_ASSIGN(const PageRun run, parts_.addresses.locate(range.ptr, range.bytes));
    VMEM_TRY(parts_.readiness.open_to(run, call.record));
    wants.push_back(want_of(range, run));
  }
  migration::AcquireRequest request;
  request.wants = wants;
  return parts_.mover.call(request);
}

migration::AcquireRequest::Want HitPath::want_of(const vmem_range& range, const PageRun& located) const {
  const pagetable::Region& region = *located.region;
  migration::AcquireRequest::Want want;
  want.run = located;
  want.access = access_of(range);
  if ((range.access & VMEM_DISCARD) == 0 || region.slab) return want;
  // Only pages wholly inside the range. A region's last page counts as whole if its used part is
  // inside.
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(range.ptr) - parts_.space.address_of(region.first.index);
  const std::uint64_t end = offset + range.bytes;
  const std::uint64_t page = region.page_bytes();
  const auto first = std::uint32_t((offset + page - 1) / page);
  const std::uint32_t last = end == region.bytes ? region.page_count : std::uint32_t(end / page);
  want.discard_first = first;
  want.discard_count = last > first ? last - first : 0;
  return want;
}

Status HitPath::release(std::span<const vmem_range> ranges, vmem_stream stream) {
  VMEM_ASSIGN(StreamRecord* const record, parts_.streams.find(stream));
  VMEM_ASSIGN(ThreadSlot* const slot, parts_.slots.current());
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
  // Every range is both logged and cleared, or none is. Normally acquire has reserved this already.
  slot->log.reserve(ranges.size() + 1);
  const pagetable::Stamp stamp = record->open_stamp();
  bool log_filled = false;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Span span = slot->span(holds[i]);
    const pagetable::Region* const region = parts_.space.region_at(span.first());
    const auto life = std::uint32_t(region == nullptr ? 0 : region->life.load(std::memory_order_relaxed));
    pagetable::LoggedUse use{span, stamp, pagetable::LoggedUse::Kind::declared, false, 0, 0, life};
    if (parts_.recorder != nullptr && region != nullptr) complete_for_trace(ranges[i], parts_.space, *region, use);
    // A trace wants repeats, too.
    const bool filled =
        parts_.recorder == nullptr ? slot->log.append(use) : slot->log.append_all(1, [&](std::size_t) { return use; });
    log_filled = filled || log_filled;
    slot->clear(holds[i]);
  }
  if (parts_.recorder != nullptr)
    log_filled =
        slot->log.append(pagetable::LoggedUse::launch(SteadyClock::now_ns(), stamp, record->device, 0)) || log_filled;
  if (log_filled) parts_.mover.poke();
  return parts_.streams.count_use(*record);
}

}  // namespace vmem::runtime
