// Completion of GPU work. Each stream passed to vmem has a record with epochs. A use is stamped
// with the stream's open epoch; recording an event on the stream closes the epoch. When the event
// completes, all uses stamped with that epoch or earlier are complete. Launching threads close an
// epoch occasionally; the mover closes the open one when it needs to know.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "pagetable/types.hpp"

namespace vmem::migration {

using pagetable::Stamp;

// Aligned against false sharing: adjacent records belong to other threads.
struct alignas(128) StreamRecord {
  // Constant while open.
  std::uint16_t index = 0;
  std::atomic<CUstream> handle{nullptr};
  std::atomic<std::uint32_t> openings{0};  // how many streams the record has served
  std::atomic<CUcontext> context{nullptr};
  int device = -1;               // index into the runtime's devices, -1: a device vmem does not use
  bool own_thread_only = false;  // CU_STREAM_PER_THREAD: only its thread can record on it

  std::atomic<bool> closed{false};
  std::atomic<std::uint64_t> open_epoch{1};
  std::atomic<std::uint64_t> covered_epoch{0};  // the last with an event recorded
  std::atomic<std::uint64_t> completed{0};      // all uses stamped up to this epoch are complete
  std::atomic<std::uint32_t> uses_since_close{0};
  // The last epoch with queued work that may have used anything (Residency::tracks).
  std::atomic<std::uint64_t> untracked_epoch{0};
  std::uint64_t untracked_seen = 0;  // the mover only

  bool spare = false;  // closed and all uses complete; protected by the table's mutex

  // Protected by mutex. The stream is closed under it, too.
  struct Recorded {
    std::uint64_t epoch;
    CUevent event;
    CUevent begin;  // see below
  };
  std::mutex mutex;
  std::deque<Recorded> recorded;
  // With Timing::on: before the first launch of the open epoch, and the end of the last completed
  // epoch. Null: none.
  CUevent begin = nullptr, timed = nullptr;
  std::atomic<bool> has_begin{false};  // false: `begin` is none, or that of a launch that failed
  std::atomic<std::chrono::steady_clock::duration> queried{std::chrono::steady_clock::duration::zero()};

  // Call after queuing the work.
  void note_untracked() {
    const std::uint64_t epoch = open_epoch.load(std::memory_order_seq_cst);
    std::uint64_t known = untracked_epoch.load(std::memory_order_relaxed);
    while (known < epoch && !untracked_epoch.compare_exchange_weak(known, epoch, std::memory_order_release)) {
    }
  }
  Stamp open_stamp() const { return {index, open_epoch.load(std::memory_order_seq_cst)}; }
};

class StreamTable {
 public:
  // Recording an event costs up to 4 µs when threads do it concurrently, and takes a lock in the
  // driver, so launching threads do it rarely. The mover closes the open epoch when it wants a
  // page.
  static constexpr std::uint32_t kUsesPerEpoch = 1024;

  struct Device {
    CUdevice device;
    CUcontext context;
  };
  // on: epochs are timed by the GPU (take_timings).
  enum class Timing : std::uint8_t { off, on };
  StreamTable(std::shared_ptr<const gpu::Driver> driver, std::vector<Device> devices, Timing timing = Timing::off);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  // The record of a stream as the calling thread sees it; opens one on first sight. Errors:
  // INVALID_VALUE (no such stream), DEVICE_LOST, UNSUPPORTED (65,535 streams open).
  Result<StreamRecord*> find(CUstream handle);
  // The same for a default stream of a given context. CU_STREAM_PER_THREAD: the calling thread's.
  Result<StreamRecord*> find(CUstream handle, CUcontext context);
  // The context of the calling thread's default streams: its current one, or the first device's.
  Result<CUcontext> current_context() const;
  // Closes the open epoch in the calling thread. Waits only for another closer of the same stream.
  // Errors: the driver's; UNSUPPORTED while the stream is capturing: an event recorded then would
  // become part of the graph.
  Status close_epoch(StreamRecord& record);
  // For Timing::on. A launch is about to be queued: if it is the open epoch's first, the epoch's
  // time begins here. Without memory, or in a capture, it does not.
  void time_launch(StreamRecord& record);
  // A stamp, covered by an event, for all work queued so far. While the stream is capturing: for
  // the work before the capture, if an event covered it when the capture began. Errors: see
  // close_epoch.
  Result<Stamp> mark(StreamRecord& record);
  // Call after logging a stamp with the open epoch; counts for `uses` uses. Closes the epoch after
  // kUsesPerEpoch uses, or at once on a per-thread stream. Errors: DEVICE_LOST.
  Status count_use(StreamRecord& record, std::uint32_t uses = 1);
  static bool closes(const StreamRecord& record, std::uint32_t uses) {  // if they are counted
    return record.own_thread_only || record.uses_since_close.load(std::memory_order_relaxed) + uses >= kUsesPerEpoch;
  }
  // The stream's owner is about to destroy it: closes its epoch and forgets the handle. Errors:
  // UNSUPPORTED while the stream is capturing, if an event does not cover its work outside the
  // capture.
  Status close_stream(CUstream handle);
  // A capture is about to begin on the stream. Until it ends no event can be recorded there or on
  // the legacy stream, so this closes their epochs. Ignores errors: they recur, and are reported,
  // where the event is needed.
  void expect_capture(CUstream handle);

  // Set once, before streams are used. Called when poll should run: many events wait, a stream was
  // closed, or a query failed.
  void on_backlog(std::function<void()> call) { on_backlog_ = std::move(call); }
  // Any thread. Whether the work behind a stamp is complete. Asks the driver at most once per
  // kQueryInterval and stream; returns false instead of waiting for another thread's query.
  bool query(Stamp stamp);
  bool backlog() const { return backlog_.load(std::memory_order_relaxed); }

  // The mover only, from here to idle.
  // Asks the driver which epochs have completed. True if any has since the last call, those found
  // by query included.
  Result<bool> poll();
  bool complete(Stamp stamp) const;
  // Records an event for a stamp that none covers yet, unless the stream is closed, capturing, or
  // recordable only by its own thread. True if covered now.
  Result<bool> cover(Stamp stamp);
  // Calls take(stamp) for each stream with a new last epoch of untracked work since the last call.
  template <class Take>
  void take_untracked(Take&& take);
  struct EpochTime {
    Stamp epoch;
    // From the begin of its first launch to its end. Of an epoch without launches: since the end of
    // the stream's epoch before; of the first one 0.
    std::uint64_t gpu_ns = 0;
    std::uint64_t seen_ns = 0;  // when its end was seen, by the steady clock
  };
  // Calls take(time) for each epoch whose end was seen since the last call.
  template <class Take>
  void take_timings(Take&& take);
  bool idle() const;  // no recorded event is pending, and poll has reported all completed ones

 private:
  static constexpr std::uint32_t kMaxStreams = 65536;
  static constexpr std::size_t kBacklogEvents = 64;
  static constexpr std::chrono::microseconds kQueryInterval{5};
  struct Key {
    CUstream handle;
    std::uintptr_t context = 0;  // of the default streams
    std::uintptr_t thread = 0;   // of the per-thread stream
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept {
      return (reinterpret_cast<std::uintptr_t>(key.handle) ^ key.context * 31 ^ key.thread << 32) * 0x9e3779b97f4a7c15u;
    }
  };
  static Key key_of(CUstream handle, CUcontext context);
  Result<StreamRecord*> open(const Key& key, CUcontext context);
  Result<StreamRecord*> unused_record();
  Result<CUevent> take_event(CUcontext context);
  void put_back(CUcontext context, std::span<const CUevent> events);
  Status record_begin(StreamRecord& record);
  // It can be recorded on streams of its context only.
  struct Event {
    CUcontext context;
    CUevent handle = nullptr;
  };
  // refused: the stream is capturing or closed, or the record another context's; spent: the event
  // became part of a graph.
  enum class Recording { recorded, refused, spent };
  Result<Recording> record_epoch(StreamRecord& record, const Event& event);
  static bool has_open_uses(const StreamRecord& record);
  Result<bool> try_close(StreamRecord& record);  // false: capturing or closed
  static std::unexpected<Error> capture_error(const StreamRecord& record);
  Result<bool> capturing(const StreamRecord& record) const;
  CUresult record_event(StreamRecord& record, CUevent event) const;
  void ask_to_poll();
  Status collect(StreamRecord& record, std::vector<CUevent>& done, bool& progress);
  void time(StreamRecord& record, const StreamRecord::Recorded& ended, std::vector<CUevent>& done);

  const std::shared_ptr<const gpu::Driver> driver_;
  const std::vector<Device> devices_;
  const Timing timing_;
  const std::uint64_t generation_;  // distinguishes tables in the threads' lookup caches

  mutable std::mutex mutex_;  // by_key_, free_, spare_events_; lock it before a record's mutex
  std::unordered_map<Key, StreamRecord*, KeyHash> by_key_;
  std::unordered_map<CUcontext, std::vector<CUevent>> spare_events_;
  std::deque<StreamRecord> storage_;
  std::vector<StreamRecord*> free_;
  // records_[i] is written once, before count_ passes i.
  std::unique_ptr<std::atomic<StreamRecord*>[]> records_;
  std::atomic<std::uint32_t> count_{1};
  std::function<void()> on_backlog_;
  std::atomic<bool> backlog_{false};
  std::atomic<bool> progressed_{false};  // seen by query
  std::mutex timings_mutex_;
  std::vector<EpochTime> timings_;  // protected by it
};

template <class Take>
void StreamTable::take_timings(Take&& take) {
  std::vector<EpochTime> taken;
  {
    const std::lock_guard lock(timings_mutex_);
    taken.swap(timings_);
  }
  for (const EpochTime& each : taken) take(each);
}

template <class Take>
void StreamTable::take_untracked(Take&& take) {
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 1; i < count; ++i) {
    StreamRecord& record = *records_[i].load(std::memory_order_acquire);
    const std::uint64_t epoch = record.untracked_epoch.load(std::memory_order_acquire);
    if (std::exchange(record.untracked_seen, epoch) != epoch) take(Stamp{record.index, epoch});
  }
}

}  // namespace vmem::migration
