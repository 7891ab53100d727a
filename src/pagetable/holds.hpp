// Lock-free reports from launching threads to the mover: the pages they hold now (hold words) and
// the pages they used (the use log).
//
// A thread publishes a hold before it reads page states; the mover withdraws a page before it
// reads the holds. With a barrier on each side, at least one sees the other. There are thousands
// of launches per evicted page, so the mover executes both barriers where the kernel offers
// membarrier. A thread logs a use (or notes it in the stream's record) before it clears the hold.
// The mover reads the holds before the logs and records, so it never misses a use.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "pagetable/types.hpp"

namespace vmem::pagetable {

struct LoggedUse {
  Span span;
  Stamp stamp;
  enum class Kind : std::uint8_t {
    declared,   // by an acquire
    named,      // by a launch, in launch order
    possible,   // a launch may have used it: not reported to policies
    changed,    // not a use: the memory was freed or allocated, at the time in place of the stamp
    launched,   // not a use: for traces, after the uses of a launch or acquire
    signalled,  // not a use: for traces, the program recorded an event on a stream, or made it wait
  };
  Kind kind = Kind::declared;
  // For traces. Of a use: it does not need the span's old contents. Of `signalled`: the stream
  // waits.
  bool discards = false;
  std::uint8_t device = 0;  // of `launched`: the stream's
  // Of `launched`: what the trace took the thread since its launch before, at most 255.
  std::uint8_t tracing_us = 0;
  std::uint32_t life = 0;  // Region::life at the use, or after the change: its lower half

  // `at_ns`: host time; `what`: the number of its name in the trace.
  static LoggedUse launch(std::uint64_t at_ns, Stamp stamp, int device, std::uint32_t what) {
    return {Span(at_ns), stamp, Kind::launched, false, std::uint8_t(device), 0, what};
  }
  // `event`: the number of the program's event in the trace.
  static LoggedUse signal(std::uint64_t at_ns, Stamp stamp, std::uint32_t event, bool waits) {
    return {Span(at_ns), stamp, Kind::signalled, waits, 0, 0, event};
  }
  static LoggedUse change(std::uint64_t at_ns, Granule first, std::uint32_t granules, std::uint32_t life, bool dead) {
    return {Span(first, granules, dead ? Access::none : Access::read), Stamp(at_ns), Kind::changed, false, 0, 0, life};
  }
  // Of `launched`, `signalled` and `changed`.
  std::uint64_t at_ns() const { return kind == Kind::changed ? stamp.word() : span.word(); }
  std::uint32_t what() const { return life; }                  // of `launched`; `signalled`: event
  bool dead() const { return span.access() == Access::none; }  // of `changed`
};

// An unbounded queue from one thread to the mover, in chunks; the mover returns drained chunks.
class UseLog {
 public:
  static constexpr std::uint32_t kChunkUses = 1024;

  UseLog();
  ~UseLog();
  UseLog(const UseLog&) = delete;
  UseLog& operator=(const UseLog&) = delete;

  // The owning thread. True if it began a new chunk: the caller should tell the mover to drain.
  // Throws std::bad_alloc; the use is not logged then. Drops repeats of recent `declared` and
  // `possible` uses within an epoch, never of other kinds.
  bool append(LoggedUse use);
  // The owning thread. After it, `uses` appends allocate nothing. Throws std::bad_alloc.
  void reserve(std::size_t uses);
  // The owning thread. Appends use_at(0) .. use_at(count - 1), drops none, and publishes them chunk
  // by chunk. True as for append. Throws std::bad_alloc, but not after reserve(count).
  template <class UseAt>
  bool append_all(std::size_t count, UseAt&& use_at);
  // The mover. Calls take(use) for every use appended before the call.
  template <class Take>
  void drain(Take&& take);

 private:
  struct Chunk {
    std::atomic<std::uint32_t> filled{0};
    std::atomic<Chunk*> next{nullptr};
    std::array<LoggedUse, kChunkUses> uses;
  };
  bool next_chunk();
  void recycle(Chunk* chunk);

  static constexpr std::size_t kRecent = 8;
  // The owning thread only.
  alignas(64) Chunk* tail_;
  std::uint32_t tail_filled_ = 0;
  std::array<LoggedUse, kRecent> recent_{};
  std::vector<std::unique_ptr<Chunk>> ahead_;  // allocated by reserve
  // The mover only.
  alignas(64) Chunk* head_;
  std::uint32_t head_taken_ = 0;
  // Shared: the mover leaves a drained chunk here, and the owning thread fills it again.
  std::atomic<Chunk*> spare_{nullptr};
};

template <class UseAt>
bool UseLog::append_all(std::size_t count, UseAt&& use_at) {
  bool filled_one = false;
  for (std::size_t i = 0; i < count;) {
    if (tail_filled_ == kChunkUses) filled_one = next_chunk();
    for (; i < count && tail_filled_ < kChunkUses; ++i) tail_->uses[tail_filled_++] = use_at(i);
    tail_->filled.store(tail_filled_, std::memory_order_release);
  }
  return filled_one;
}

template <class Take>
void UseLog::drain(Take&& take) {
  for (;;) {
    const std::uint32_t filled = head_->filled.load(std::memory_order_acquire);
    while (head_taken_ < filled) take(head_->uses[head_taken_++]);
    if (head_taken_ < kChunkUses) return;
    Chunk* next = head_->next.load(std::memory_order_acquire);
    if (next == nullptr) return;
    recycle(std::exchange(head_, next));
    head_taken_ = 0;
  }
}

// One thread's holds and its log.
class ThreadSlot {
 public:
  // The range as the acquirer named it, by which its release finds the hold.
  struct Hold {
    std::uintptr_t address = 0;
    std::uint64_t bytes = 0;
  };
  static constexpr std::uint32_t kBlockHolds = 64;

  // The owning thread, before it reads page states: `publish`; or `announce` for several holds, and
  // then `fence_announced` once. publish and announce return the hold's index. They allocate, and
  // may throw std::bad_alloc, only beyond 64 holds at once.
  std::uint32_t publish(Span span, Hold hold) {
    const std::uint32_t index = announce(span, hold);
    fence_announced();
    return index;
  }
  std::uint32_t announce(Span span, Hold hold) {
    // Release: a mover that finds this hold in place of the word's previous one also sees the uses
    // logged before that one was cleared.
    return put(span, hold, kFences ? std::memory_order_release : std::memory_order_seq_cst);
  }
  static void fence_announced() {
    if constexpr (kFences) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (!remote_barriers.load(std::memory_order_relaxed)) std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // The owning thread. If work was queued under the hold: after its use was logged or noted.
  void clear(std::uint32_t index) {
    Block& at = index < kBlockHolds ? first_ : *block(index);
    at.words[index % kBlockHolds].store(Span::kEmpty, std::memory_order_release);
    at.free |= std::uint64_t{1} << (index % kBlockHolds);
    --held_;
  }
  // The index of a hold equal to (address, bytes) that is not among `taken`, or -1.
  std::int64_t find(Hold hold, std::span<const std::uint32_t> taken) const;
  bool holds_within(std::uintptr_t address, std::uint64_t bytes) const;  // any begins in the range
  Span span(std::uint32_t index) const;
  std::uint32_t held() const { return held_; }
  // Entries of the log that its holds still owe it: a use each, and with a trace one for each
  // launch or release.
  std::size_t owed() const { return 2 * std::size_t{held_} + 1; }
  void count_acquire() { acquires_.store(acquires_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

  // Any thread.
  template <class See>
  void for_each(See&& see) const;  // see(Span) for every published hold

  UseLog log;

 private:
  friend class ThreadRegistry;
  struct Block {
    alignas(64) std::array<std::atomic<std::uint64_t>, kBlockHolds> words{};
    std::atomic<Block*> next{nullptr};
    // The owning thread only.
    std::array<Hold, kBlockHolds> holds;
    std::uint64_t free = ~std::uint64_t{0};
  };
  // True: the mover's membarrier stands in for the launching threads' barriers.
  static inline constinit std::atomic<bool> remote_barriers{false};
  // The thread sanitizer does not support fences.
#ifdef __SANITIZE_THREAD__
  static constexpr bool kFences = false;
#else
  static constexpr bool kFences = true;
#endif
  Block* block(std::uint32_t index) const;
  std::uint32_t put(Span span, Hold hold, std::memory_order order) {
    if (first_.free != 0) [[likely]]
      return put_into(first_, span, hold, order);
    return put_behind(span, hold, order);
  }
  std::uint32_t put_into(Block& target, Span span, Hold hold, std::memory_order order) {
    const auto index = std::uint32_t(std::countr_zero(target.free));
    target.free &= target.free - 1;
    target.holds[index] = hold;
    target.words[index].store(span.word(), order);
    ++held_;
    return index;
  }
  std::uint32_t put_behind(Span span, Hold hold, std::memory_order order);

  Block first_;
  std::uint32_t held_ = 0;
  std::atomic<std::uint64_t> acquires_{0};  // written by the owning thread only
  std::atomic<bool> in_use_{false};         // by a live thread
};

template <class See>
void ThreadSlot::for_each(See&& see) const {
  for (const Block* block = &first_; block != nullptr; block = block->next.load(std::memory_order_acquire)) {
    for (const auto& word : block->words) {
      const Span span(word.load(std::memory_order_seq_cst));
      if (!span.empty()) see(span);
    }
  }
}

// All slots of a process. Later threads reuse slots; only the registry's destructor frees them.
class ThreadRegistry {
 public:
  ThreadRegistry();
  ~ThreadRegistry();
  ThreadRegistry(const ThreadRegistry&) = delete;
  ThreadRegistry& operator=(const ThreadRegistry&) = delete;

  // Null: kMaxSlots threads have one.
  ThreadSlot* claim();
  // At thread exit. Published holds stay until the registry ends, since the end of their work is
  // unknown; their slot is not reused.
  void give_back(ThreadSlot* slot);

  // The mover, from here on.

  // Call between making a state word inaccessible and the deciding read of the holds: a thread
  // whose hold that read misses sees the word. False: no guarantee, so restore the word.
  bool barrier_all_threads() const;
  struct Overlapping {
    std::uint32_t named = 0;
    std::uint32_t of_everything = 0;  // each ends as soon as its launch is queued
  };
  Overlapping overlapping_holds(std::uint32_t begin, std::uint32_t end) const;
  bool holds_overlap(std::uint32_t begin, std::uint32_t end) const {
    const Overlapping found = overlapping_holds(begin, end);
    return found.named + found.of_everything != 0;
  }
  // Calls take(slot, use), one thread's uses after another's; `slot` tells threads apart.
  template <class Take>
  void drain(Take&& take);
  bool any_hold() const;
  std::uint64_t acquires() const;  // by all threads so far

 private:
  static constexpr std::uint32_t kMaxSlots = 4096;
  std::mutex mutex_;  // for claim and give_back
  std::array<std::atomic<ThreadSlot*>, kMaxSlots> slots_{};
  std::atomic<std::uint32_t> count_{0};
};

template <class Take>
void ThreadRegistry::drain(Take&& take) {
  const std::uint32_t count = count_.load(std::memory_order_seq_cst);
  for (std::uint32_t i = 0; i < count; ++i)
    slots_[i].load(std::memory_order_acquire)->log.drain([&](const LoggedUse& use) { take(i, use); });
}

}  // namespace vmem::pagetable
