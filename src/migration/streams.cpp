#include "migration/streams.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/clock.hpp"
#include "base/memory_reserve.hpp"
#include "base/process.hpp"
#include "gpu/handles.hpp"

namespace vmem::migration {
namespace {

std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> generation{0};
  return ++generation;
}

// The calling thread's last lookup. Valid while the table is the same and the record still serves
// the same stream.
struct Lookup {
  std::uint64_t generation = 0;
  CUstream handle = nullptr;
  std::uintptr_t context = 0;
  std::uintptr_t thread = 0;
  StreamRecord* record = nullptr;
  std::uint32_t opening = 0;
};
thread_local Lookup last_lookup;

bool is_named_default(CUstream handle) {
  return handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

}  // namespace

StreamTable::StreamTable(std::shared_ptr<const gpu::Driver> driver, std::vector<Device> devices, Timing timing)
    : driver_(std::move(driver)),
      devices_(std::move(devices)),
      timing_(timing),
      generation_(next_generation()),
      records_(std::make_unique<std::atomic<StreamRecord*>[]>(kMaxStreams)) {}

StreamTable::~StreamTable() {
  // Ignore failures: they mean a lost context, which destroyed its events.
  for (auto& record : storage_) {
    for (auto& recorded : record.recorded) {
      (void)(*driver_)->cuEventDestroy(recorded.event);
      if (recorded.begin != nullptr) (void)(*driver_)->cuEventDestroy(recorded.begin);
    }
    for (CUevent each : {record.begin, record.timed}) {
      if (each != nullptr) (void)(*driver_)->cuEventDestroy(each);
    }
  }
  for (auto& [context, events] : spare_events_) {
    for (CUevent event : events) (void)(*driver_)->cuEventDestroy(event);
  }
}

Result<CUcontext> StreamTable::current_context() const {
  CUcontext context = nullptr;
  VMEM_TRY(driver_->check((*driver_)->cuCtxGetCurrent(&context), "cuCtxGetCurrent"));
  return context == nullptr ? devices_.front().context : context;
}

StreamTable::Key StreamTable::key_of(CUstream handle, CUcontext context) {
  if (!is_named_default(handle)) return {handle};
  const auto of_context = reinterpret_cast<std::uintptr_t>(context);
  if (handle == CU_STREAM_PER_THREAD) return {handle, of_context, process::thread_number()};
  return {CU_STREAM_LEGACY, of_context};
}

Result<StreamRecord*> StreamTable::find(CUstream handle) {
  if (!is_named_default(handle)) return find(handle, nullptr);
  VMEM_ASSIGN(CUcontext const context, current_context());
  return find(handle, context);
}

Result<StreamRecord*> StreamTable::find(CUstream handle, CUcontext context) {
  const Key key = key_of(handle, context);
  Lookup& last = last_lookup;
  if (last.generation == generation_ && last.handle == key.handle && last.context == key.context &&
      last.thread == key.thread && !last.record->closed.load(std::memory_order_acquire) &&
      last.record->openings.load(std::memory_order_relaxed) == last.opening) {
    return last.record;
  }
  const std::lock_guard lock(mutex_);
  StreamRecord* record = nullptr;
  if (const auto found = by_key_.find(key); found != by_key_.end()) {
    record = found->second;
  } else {
    VMEM_ASSIGN(record, open(key, context));
  }
  last = {generation_, key.handle, key.context, key.thread, record, record->openings.load(std::memory_order_relaxed)};
  return record;
}

Result<StreamRecord*> StreamTable::open(const Key& key, CUcontext context) {
  if (!is_named_default(key.handle)) {
    if (const CUresult result = (*driver_)->cuStreamGetCtx(key.handle, &context); result != CUDA_SUCCESS) {
      Error error = driver_->check(result, "cuStreamGetCtx").error();
      if (error.status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(std::move(error));
      return fail(
          VMEM_ERROR_INVALID_VALUE,
          fmt::format("stream {} is not a stream of this process: {}", static_cast<void*>(key.handle), error.message),
          result);
    }
  }
  VMEM_ASSIGN(StreamRecord* const record, unused_record());
  // Whoever closes an epoch of the stream that the record served before sees that it is another.
  const std::lock_guard record_lock(record->mutex);
  for (CUevent* each : {&record->begin, &record->timed}) {
    if (*each != nullptr) spare_events_[record->context].push_back(std::exchange(*each, nullptr));
  }
  record->has_begin.store(false, std::memory_order_relaxed);
  record->handle = key.handle;
  record->openings.fetch_add(1, std::memory_order_relaxed);
  record->context = context;
  record->own_thread_only = key.handle == CU_STREAM_PER_THREAD;
  record->device = -1;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].context == context) record->device = int(i);
  }
  record->closed.store(false, std::memory_order_release);
  by_key_[key] = record;
  return record;
}

Result<StreamRecord*> StreamTable::unused_record() {
  if (!free_.empty()) {
    StreamRecord* record = free_.back();
    free_.pop_back();
    record->spare = false;
    return record;
  }
  const std::uint32_t index = count_.load(std::memory_order_relaxed);
  if (index == kMaxStreams)
    return fail(VMEM_ERROR_UNSUPPORTED, "65,535 streams are open; close some with vmem_stream_close");
  StreamRecord* record = &storage_.emplace_back();
  record->index = std::uint16_t(index);
  records_[index].store(record, std::memory_order_release);
  count_.store(index + 1, std::memory_order_release);
  return record;
}

Result<CUevent> StreamTable::take_event(CUcontext context) {
  {
    const std::lock_guard lock(mutex_);
    if (auto& spare = spare_events_[context]; !spare.empty()) {
      CUevent event = spare.back();
      spare.pop_back();
      return event;
    }
  }
  CUevent event = nullptr;
  VMEM_TRY(driver_->check((*driver_)->cuCtxPushCurrent(context), "cuCtxPushCurrent"));
  const CUresult created =
      (*driver_)->cuEventCreate(&event, timing_ == Timing::on ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING);
  CUcontext popped = nullptr;
  (void)(*driver_)->cuCtxPopCurrent(&popped);
  VMEM_TRY(driver_->check(created, "cuEventCreate"));
  return event;
}

void StreamTable::put_back(CUcontext context, std::span<const CUevent> events) {
  const std::lock_guard lock(mutex_);
  auto& spare = spare_events_[context];
  spare.insert(spare.end(), events.begin(), events.end());
}

Status StreamTable::close_epoch(StreamRecord& record) {
  VMEM_ASSIGN(const bool closed, try_close(record));
  if (closed) return {};
  return capture_error(record);
}

Result<Stamp> StreamTable::mark(StreamRecord& record) {
  const Stamp open = record.open_stamp();
  VMEM_ASSIGN(const bool closed, try_close(record));
  if (closed) return open;
  if (has_open_uses(record)) return capture_error(record);
  return Stamp(record.index, record.covered_epoch.load(std::memory_order_acquire));
}

std::unexpected<Error> StreamTable::capture_error(const StreamRecord& record) {
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("stream {} is capturing a graph", static_cast<void*>(record.handle.load())));
}

Result<bool> StreamTable::try_close(StreamRecord& record) {
  // take_event locks the table's mutex; the lock order is table, then record. So the record may
  // serve another stream by the time of the second lock, even of another context.
  Event event{.context = record.context};
  VMEM_ASSIGN(event.handle, take_event(event.context));
  std::unique_lock lock(record.mutex);
  auto outcome = record_epoch(record, event);
  const bool backlog = record.recorded.size() >= kBacklogEvents;
  lock.unlock();
  if (!outcome || *outcome != Recording::recorded) put_back(event.context, {&event.handle, 1});
  if (!outcome) return std::unexpected(std::move(outcome).error());
  if (backlog) ask_to_poll();
  return *outcome == Recording::recorded;
}

// REQUIRES: record.mutex, which keeps the stream open: once closed, its handle may die at any time.
Result<StreamTable::Recording> StreamTable::record_epoch(StreamRecord& record, const Event& event) {
  if (record.closed.load(std::memory_order_relaxed) || record.context != event.context) return Recording::refused;
  VMEM_ASSIGN(const bool in_capture, capturing(record));
  if (in_capture) return Recording::refused;
  // The epoch ends before the event is recorded, so the event covers every use stamped with it:
  // those were queued earlier still.
  const std::uint64_t epoch = record.open_epoch.fetch_add(1, std::memory_order_seq_cst);
  record.uses_since_close.store(0, std::memory_order_relaxed);
  // Before the event is recorded: it may throw.
  record.recorded.push_back({epoch, event.handle, record.begin});
  // On failure the epoch stays uncovered until an event of a later one is recorded.
  if (auto outcome = driver_->check(record_event(record, event.handle), "cuEventRecord"); !outcome) {
    record.recorded.pop_back();
    return std::unexpected(std::move(outcome).error());
  }
  // If a capture began in between, the event may be the graph's, and a query would end the capture.
  if (const auto begun = capturing(record); !begun || *begun) {
    record.recorded.pop_back();
    return Recording::spent;
  }
  record.begin = nullptr;
  record.has_begin.store(false, std::memory_order_relaxed);
  record.covered_epoch.store(epoch, std::memory_order_release);
  return Recording::recorded;
}

void StreamTable::time_launch(StreamRecord& record) {
  // Another closer may end the epoch in between: then the next launch's epoch has no begin. A lost
  // device is met by whoever closes the epoch.
  if (record.has_begin.load(std::memory_order_relaxed)) return;
  (void)ran_within_memory([&] { (void)record_begin(record); });
}

Status StreamTable::record_begin(StreamRecord& record) {
  Event event{.context = record.context};
  VMEM_ASSIGN(event.handle, take_event(event.context));
  std::unique_lock lock(record.mutex);
  const bool same = !record.closed.load(std::memory_order_relaxed) && record.context == event.context;
  const auto outside = [&] {
    const auto in_capture = capturing(record);
    return in_capture && !*in_capture;
  };
  // Asked again: a capture may have begun in between, and the event be the graph's.
  if (same && outside() && record_event(record, event.handle) == CUDA_SUCCESS && outside()) {
    std::swap(event.handle, record.begin);
    record.has_begin.store(true, std::memory_order_relaxed);
  }
  lock.unlock();
  if (event.handle != nullptr) put_back(event.context, {&event.handle, 1});
  return {};
}

Result<bool> StreamTable::capturing(const StreamRecord& record) const {
  const bool push = is_named_default(record.handle);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = push ? (*driver_)->cuCtxPushCurrent(record.context) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) {
    result = (*driver_)->cuStreamIsCapturing(record.handle, &status);
    CUcontext popped = nullptr;
    if (push) (void)(*driver_)->cuCtxPopCurrent(&popped);
  }
  // The legacy stream, while another stream captures: an event recorded on it would end the
  // capture.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  VMEM_TRY(driver_->check(result, "cuStreamIsCapturing"));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// REQUIRES: record.mutex.
CUresult StreamTable::record_event(StreamRecord& record, CUevent event) const {
  if (!is_named_default(record.handle)) return (*driver_)->cuEventRecord(event, record.handle);
  CUresult result = (*driver_)->cuCtxPushCurrent(record.context);
  if (result != CUDA_SUCCESS) return result;
  result = (*driver_)->cuEventRecord(event, record.handle);
  CUcontext popped = nullptr;
  (void)(*driver_)->cuCtxPopCurrent(&popped);
  return result;
}

Status StreamTable::count_use(StreamRecord& record, std::uint32_t more) {
  if (!closes(record, more)) {
    record.uses_since_close.store(record.uses_since_close.load(std::memory_order_relaxed) + more,
                                  std::memory_order_relaxed);
    return {};
  }
  // An epoch that cannot be closed now is closed later; the caller handles only a lost device.
  Result<bool> closed = false;
  (void)ran_within_memory([&] { closed = try_close(record); });
  // Only this thread can record on its per-thread stream. If it ends first, its number must stay
  // taken: otherwise events of another thread would count for its epochs.
  if (record.own_thread_only && (!closed || !*closed)) process::keep_thread_number();
  if (closed || closed.error().status != VMEM_ERROR_DEVICE_LOST) {
    record.uses_since_close.store(0, std::memory_order_relaxed);
    return {};
  }
  return std::unexpected(closed.error());
}

void StreamTable::expect_capture(CUstream handle) {
  const auto context = current_context();
  if (!context) return;
  for (const CUstream each : {handle, CU_STREAM_LEGACY}) {
    StreamRecord* record = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = by_key_.find(key_of(each, *context));
      if (found != by_key_.end()) record = found->second;
    }
    if (record != nullptr && has_open_uses(*record)) (void)try_close(*record);
  }
}

bool StreamTable::has_open_uses(const StreamRecord& record) {
  return record.uses_since_close.load(std::memory_order_relaxed) != 0 ||
         record.untracked_epoch.load(std::memory_order_relaxed) == record.open_epoch.load(std::memory_order_relaxed);
}

Status StreamTable::close_stream(CUstream handle) {
  VMEM_ASSIGN(CUcontext const context, current_context());
  const Key key = key_of(handle, context);
  const auto known = [&]() -> StreamRecord* {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  };
  StreamRecord* record = nullptr;
  {
    const std::lock_guard lock(mutex_);
    record = known();
  }
  if (record == nullptr) return {};
  Event event{.context = record->context};
  VMEM_ASSIGN(event.handle, take_event(event.context));
  {
    const std::lock_guard lock(mutex_);
    // Another thread may have closed the stream meanwhile.
    const bool still_open = known() == record;
    const std::lock_guard record_lock(record->mutex);
    const auto outcome = still_open ? record_epoch(*record, event) : Result<Recording>(Recording::refused);
    if (!outcome || *outcome != Recording::recorded) spare_events_[event.context].push_back(event.handle);
    if (!outcome) return std::unexpected(outcome.error());
    // A stream may be destroyed while capturing, if its earlier work was covered when that began.
    const bool uncovered = *outcome == Recording::spent || (*outcome == Recording::refused && has_open_uses(*record));
    if (still_open && uncovered) return capture_error(*record);
    if (still_open) {
      record->closed.store(true, std::memory_order_release);
      by_key_.erase(key);
    }
  }
  ask_to_poll();  // poll finds out when the record can be reused
  return {};
}

bool StreamTable::query(Stamp stamp) {
  if (complete(stamp)) return true;
  StreamRecord& record = *records_[stamp.stream()].load(std::memory_order_acquire);
  if (record.covered_epoch.load(std::memory_order_acquire) < stamp.epoch()) return false;
  // Limits queries in a loop, or of many stamps, so that other threads get the record in between.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  if (now - record.queried.load(std::memory_order_relaxed) < kQueryInterval) return false;
  std::vector<CUevent> done;
  CUcontext context = nullptr;
  {
    const std::unique_lock lock(record.mutex, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    record.queried.store(now, std::memory_order_relaxed);
    // Once its events are collected, the record may serve a stream of another context.
    context = record.context;
    const gpu::RelaxedCapture relaxed(*driver_);
    // The mover's poll sees the same error, and reports it.
    bool progress = false;
    if (!collect(record, done, progress)) ask_to_poll();
    if (progress) progressed_.store(true, std::memory_order_release);
  }
  if (!done.empty()) put_back(context, done);
  return complete(stamp);
}

void StreamTable::ask_to_poll() {
  if (!backlog_.exchange(true, std::memory_order_relaxed) && on_backlog_) on_backlog_();
}

Result<bool> StreamTable::poll() {
  bool progress = progressed_.exchange(false, std::memory_order_acquire);
  backlog_.store(false, std::memory_order_relaxed);
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  std::vector<CUevent> done;
  for (std::uint32_t i = 1; i < count; ++i) {
    StreamRecord& record = *records_[i].load(std::memory_order_acquire);
    done.clear();
    CUcontext context = nullptr;
    const Status collected = [&] {
      const std::lock_guard lock(record.mutex);
      context = record.context;
      return collect(record, done, progress);
    }();
    if (!done.empty()) put_back(context, done);
    // A closed record whose uses are all complete can serve another stream. Its epochs continue.
    if (record.closed.load(std::memory_order_acquire) && record.completed.load() + 1 == record.open_epoch.load()) {
      const std::lock_guard lock(mutex_);
      if (record.closed.load() && !std::exchange(record.spare, true)) free_.push_back(&record);
    }
    if (!collected) return std::unexpected(collected.error());
  }
  return progress;
}

// REQUIRES: record.mutex. Sets `progress` if it takes an event off the record.
Status StreamTable::collect(StreamRecord& record, std::vector<CUevent>& done, bool& progress) {
  while (!record.recorded.empty()) {
    const auto [epoch, event, begin] = record.recorded.front();
    const CUresult result = (*driver_)->cuEventQuery(event);
    if (result == CUDA_ERROR_NOT_READY) break;
    if (result == CUDA_ERROR_CAPTURED_EVENT || result == CUDA_ERROR_INVALID_VALUE) {
      // A capture began and ended around the recording: the event was the graph's, and says nothing
      // about the stream. A later record_epoch covers the epoch.
      done.push_back(event);
      if (begin != nullptr) done.push_back(begin);
      // The next epoch's time would contain this one's.
      if (record.timed != nullptr) done.push_back(std::exchange(record.timed, nullptr));
      record.recorded.pop_front();
      progress = true;
      if (record.recorded.empty()) record.covered_epoch.store(record.completed.load(), std::memory_order_release);
      continue;
    }
    VMEM_TRY(driver_->check(result, "cuEventQuery"));
    if (timing_ == Timing::on) {
      time(record, record.recorded.front(), done);
    } else {
      done.push_back(event);
    }
    // Last: once all is complete, a closed stream's record may serve another one.
    record.completed.store(epoch, std::memory_order_release);
    record.recorded.pop_front();
    progress = true;
  }
  return {};
}

// Keeps the event for the next epoch's time. Without memory, or for a device that refuses, an
// epoch has no time.
void StreamTable::time(StreamRecord& record, const StreamRecord::Recorded& ended, std::vector<CUevent>& done) {
  float ms = 0;
  CUevent const from = ended.begin != nullptr ? ended.begin : record.timed;
  const bool timed = from == nullptr || (*driver_)->cuEventElapsedTime(&ms, from, ended.event) == CUDA_SUCCESS;
  for (CUevent each : {ended.begin, record.timed}) {
    if (each != nullptr) done.push_back(each);
  }
  record.timed = ended.event;
  if (!timed) return;
  const EpochTime time{Stamp(record.index, ended.epoch), std::uint64_t(double(ms) * 1e6), SteadyClock::now_ns()};
  (void)ran_within_memory([&] {
    const std::lock_guard lock(timings_mutex_);
    timings_.push_back(time);
  });
}

bool StreamTable::complete(Stamp stamp) const {
  if (stamp.empty()) return true;
  return records_[stamp.stream()].load(std::memory_order_acquire)->completed.load(std::memory_order_acquire) >=
         stamp.epoch();
}

Result<bool> StreamTable::cover(Stamp stamp) {
  StreamRecord& record = *records_[stamp.stream()].load(std::memory_order_acquire);
  if (record.covered_epoch.load(std::memory_order_acquire) >= stamp.epoch()) return true;
  if (record.own_thread_only || record.closed.load(std::memory_order_acquire)) return false;
  return try_close(record);
}

bool StreamTable::idle() const {
  if (progressed_.load(std::memory_order_acquire)) return false;
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 1; i < count; ++i) {
    StreamRecord& record = *records_[i].load(std::memory_order_acquire);
    const std::lock_guard lock(record.mutex);
    if (!record.recorded.empty()) return false;
  }
  return true;
}

}  // namespace vmem::migration
