// When work is complete. Every stream that was passed to vmem has a record with epochs: a use is stamped with the stream's open
// epoch; recording an event on the stream closes it; when the event has completed, so has everything stamped with the epoch.
// Launching threads close an epoch now and then, the mover closes what is open when it needs to know.
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

// Aligned: neighbours belong to other threads.
struct alignas(128) StreamRecord {
  // Constant while open.
  std::uint16_t index = 0;
  std::atomic<CUstream> handle{nullptr};
  std::atomic<std::uint32_t> openings{0};  // tells the streams that the record has served one after another
  CUcontext context = nullptr;
  int device = -1;               // index into the runtime's devices, -1: a device vmem does not use
  bool own_thread_only = false;  // CU_STREAM_PER_THREAD: only its thread can record on it

  std::atomic<bool> closed{false};
  std::atomic<std::uint64_t> open_epoch{1};
  std::atomic<std::uint64_t> covered_epoch{0};  // an event has been recorded for it
  std::atomic<std::uint64_t> completed{0};      // everything stamped up to this epoch is complete
  std::atomic<std::uint32_t> uses_since_close{0};
  std::atomic<std::uint64_t> untracked_epoch{
      0};                            // the last under which work was queued that may have used anything (mover.hpp)
  std::uint64_t untracked_seen = 0;  // by the mover

  bool spare = false;  // closed and unused; the table's mutex protects it

  // Protected by mutex, under which the stream is also closed.
  struct Recorded {
    std::uint64_t epoch;
    CUevent event;
  };
  std::mutex mutex;
  std::deque<Recorded> recorded;
  std::atomic<std::chrono::steady_clock::duration> queried{std::chrono::steady_clock::duration::zero()};

  // After the work was queued.
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
  // Recording an event costs up to 4 µs when threads do it at once, and a lock in the driver, so launching threads do it rarely;
  // the mover, which needs the answer only when it wants a page, closes the open epoch itself then.
  static constexpr std::uint32_t kUsesPerEpoch = 1024;

  struct Device {
    CUdevice device;
    CUcontext context;
  };
  StreamTable(std::shared_ptr<const gpu::Driver> driver, std::vector<Device> devices);
  ~StreamTable();
  StreamTable(const StreamTable&) = delete;
  StreamTable& operator=(const StreamTable&) = delete;

  // The record of a stream as the calling thread sees it; a new one on first sight. Errors: INVALID_VALUE (no such stream),
  // DEVICE_LOST, UNSUPPORTED (65,535 streams open).
  Result<StreamRecord*> find(CUstream handle);
  // The same for a default stream of a given context; the per-thread stream is the calling thread's.
  Result<StreamRecord*> find(CUstream handle, CUcontext context);
  // The context whose default streams the calling thread means: its current one, or the first device's if it has none.
  Result<CUcontext> current_context() const;
  // Closes the open epoch now, in the calling thread. Waits for nobody but another closer of the same stream. Errors: the
  // driver's; UNSUPPORTED while the stream is capturing: an event recorded then would become part of the graph.
  Status close_epoch(StreamRecord& record);
  // A stamp for all that is queued by now, covered by an event. While the stream is capturing, of what came before, if that was covered when
  // the capture began. Errors: those of close_epoch.
  Result<Stamp> mark(StreamRecord& record);
  // After a stamp with the open epoch was logged: closes the epoch when it is due, after kUsesPerEpoch uses; one may count for
  // several. Errors: DEVICE_LOST.
  Status count_use(StreamRecord& record, std::uint32_t uses = 1);
  // The stream's owner is about to destroy it: closes its epoch and forgets the handle. Errors: UNSUPPORTED while it is capturing, if work
  // on it that was not captured is not covered by an event.
  Status close_stream(CUstream handle);
  // A capture is about to begin on the stream: until it ends no event can be recorded there, nor on the legacy stream, so their epochs are
  // closed now. What fails here fails again, and is reported, where the event is needed.
  void expect_capture(CUstream handle);

  // Set once, before streams are used: called when so many events are waiting that poll should be called.
  void on_backlog(std::function<void()> call) { on_backlog_ = std::move(call); }
  // Whether the work behind a stamp is complete. Asks the driver if need be, and if that was not done for a moment, but waits for nobody
  // who asks it. Any thread.
  bool query(Stamp stamp);
  bool backlog() const { return backlog_.load(std::memory_order_relaxed); }

  // The mover.
  // Asks the driver which epochs have completed; true if any has since the last call, or query has found one.
  Result<bool> poll();
  bool complete(Stamp stamp) const;
  // The stamp is not covered by an event yet: records one, unless only the stream's own thread may, or the stream is capturing.
  // True if covered now.
  Result<bool> cover(Stamp stamp);
  // Calls take(stamp) with the last epoch of untracked work of every stream where that is another than at the last call.
  template <class Take>
  void take_untracked(Take&& take);
  bool idle() const;  // no epoch is waiting for its event, and the last poll knew of all that have

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
  enum class Outcome { recorded, refused, spent };  // refused: capturing or closed; spent: the event is a graph's
  Result<Outcome> record_epoch(StreamRecord& record, CUevent event);
  static bool has_open_uses(const StreamRecord& record);
  Result<bool> try_close(StreamRecord& record);  // false: the stream is capturing, or closed
  static std::unexpected<Error> capture_error(const StreamRecord& record);
  Result<bool> capturing(const StreamRecord& record) const;
  CUresult record_event(StreamRecord& record, CUevent event) const;
  void ask_to_poll();
  Status collect(StreamRecord& record, std::vector<CUevent>& done);

  const std::shared_ptr<const gpu::Driver> driver_;
  const std::vector<Device> devices_;
  const std::uint64_t generation_;  // tells the threads' lookup caches of one table from those of a later one

  mutable std::mutex mutex_;  // records_by_key_, free_, spare_events_; taken before a record's mutex
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
};

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
