// A stream: a queue of work and, from the first queued work on, a worker thread that runs it in order. Work is numbered
// by ticket; a fence names a ticket of a stream. Every wait is for work submitted earlier, so waits cannot form a
// cycle; except those for a value in memory, which are the program's affair.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Context;
class Stream;
struct Capture;

using Work = std::move_only_function<void()>;

struct Fence {
  std::shared_ptr<Stream> stream;
  std::uint64_t ticket = 0;
};

// After a fault the context runs no more work, but what others wait for (event records, host bookkeeping) still
// happens.
enum class AfterFault { skip, run };

// The legacy stream synchronises implicitly with blocking ones.
enum class StreamKind { legacy, blocking, non_blocking };

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, StreamKind kind);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  bool non_blocking() const { return kind_ == StreamKind::non_blocking; }
  bool legacy() const { return kind_ == StreamKind::legacy; }
  std::uint64_t id() const { return id_; }

  // Queues work that begins after `waits`. The ticket completes when the work has run.
  std::uint64_t push(Work work, std::vector<Fence> waits, AfterFault after_fault);
  // Runs `work` here and now if everything queued is complete. What this saves is a trip to the worker.
  bool run_if_idle(const std::function<void()>& work);

  bool idle() const;
  std::uint64_t last_ticket() const { return submitted_.load(std::memory_order_acquire); }
  void wait(std::uint64_t ticket) const;
  // No more work; the worker ends when the queue is empty.
  void close();

  // The capture this stream takes part in; guarded by the captures' lock (capture.hpp), except that `capturing` is a
  // hint that any thread may read.
  std::shared_ptr<Capture> capture;
  std::atomic<bool> capturing{false};

 private:
  struct Entry {
    Work work;
    std::vector<Fence> waits;
    AfterFault after_fault;
  };
  void work_loop();
  void run(Entry& entry);

  const std::shared_ptr<Context> context_;
  const StreamKind kind_;
  const std::uint64_t id_;

  std::mutex mutex_;  // protects the queue and the three flags; leaf
  std::condition_variable work_arrived_;
  std::deque<Entry> queue_;
  bool worker_started_ = false;
  bool worker_sleeps_ = false;
  bool closed_ = false;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<std::uint64_t> completed_{0};
};

}  // namespace vmem::emu
