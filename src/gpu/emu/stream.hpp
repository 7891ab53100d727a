// A stream: a queue of work and a worker thread, started with the first queued work, that runs it
// in order; without worker threads, see step_scheduler.hpp. Tickets number the work; a fence names
// a ticket of a stream. Waits refer to earlier work only, so they cannot form a cycle. Exception:
// waits for a value in memory, for which the program is responsible.
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

// What a piece of work waits for, besides earlier work.
struct Wait {
  std::function<bool()> over;   // null: nothing; called until it returns true
  std::function<void()> pause;  // between two calls of `over`
};

// After a fault the context skips its work, except work that others wait for (event records, host
// bookkeeping).
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

  // Queues work that begins after `fences` and `wait`. The returned ticket completes when the work
  // has run.
  std::uint64_t push(Work work, std::vector<Fence> fences, AfterFault after_fault, Wait wait = {});
  // Runs `work` in the caller if everything queued is complete. Saves the switch to the worker.
  bool run_if_idle(const std::function<void()>& work);

  // Without a worker: runs the next piece of work. False: there is none, or it has to wait.
  bool step();

  bool idle() const;
  bool completed(std::uint64_t ticket) const { return completed_.load(std::memory_order_acquire) >= ticket; }
  std::uint64_t last_ticket() const { return submitted_.load(std::memory_order_acquire); }
  void wait(std::uint64_t ticket) const;
  // Ends submission; the worker exits when the queue is empty.
  void close();

  // The capture that includes this stream; protected by the captures' lock (capture.hpp).
  // `capturing` is a hint that any thread may read.
  std::shared_ptr<Capture> capture;
  std::atomic<bool> capturing{false};

 private:
  struct Entry {
    Work work;
    std::vector<Fence> fences;
    AfterFault after_fault;
    Wait wait;
  };
  void work_loop();
  void run(Entry& entry);

  const std::shared_ptr<Context> context_;
  const StreamKind kind_;
  const std::uint64_t id_;
  const bool has_worker_;

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
