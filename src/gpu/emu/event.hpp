// Events. Each cuEventRecord makes a new record. A wait refers to the record current at its call,
// so a later cuEventRecord does not affect it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Context;
class Stream;
struct Capture;
struct Node;

class Record {
 public:
  using Clock = std::chrono::steady_clock;

  bool complete() const { return state_.load(std::memory_order_acquire) != 0; }
  void wait() const { state_.wait(0, std::memory_order_acquire); }
  void finish() {
    time_ = Clock::now();
    state_.store(1, std::memory_order_release);
    state_.notify_all();
  }
  Clock::time_point time() const { return time_; }  // REQUIRES: complete()

  // Set before others see the record, if it was made on a capturing stream. Such a record never
  // completes.
  std::shared_ptr<Capture> capture;
  const Stream* captured_stream = nullptr;
  std::uint64_t captured_operations = 0;  // of that stream, up to and including the record
  std::vector<Node*> captured_nodes;      // predecessors of the next node

 private:
  std::atomic<std::uint32_t> state_{0};
  Clock::time_point time_;
};

struct Event {
  Event(std::shared_ptr<Context> owner, unsigned creation_flags) : context(std::move(owner)), flags(creation_flags) {}

  std::shared_ptr<Record> latest() const {
    const std::lock_guard lock(mutex);
    return record;
  }
  void replace(std::shared_ptr<Record> fresh) {
    const std::lock_guard lock(mutex);
    record = std::move(fresh);
  }

  const std::shared_ptr<Context> context;
  const unsigned flags;
  mutable std::mutex mutex;  // protects record; leaf
  std::shared_ptr<Record> record;
};

}  // namespace vmem::emu
