// Emulates a slower disk: delays each completion until a disk of the given rate would have
// completed the request. Shows the benefit of compression on such a disk on a machine with a fast
// one.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tiers/io/io_queue.hpp"

namespace vmem::bench {

class PacedQueue final : public tiers::IoQueue {
 public:
  // `bytes_s`: bytes a second each way.
  PacedQueue(std::unique_ptr<tiers::IoQueue> disk, std::uint64_t bytes_s)
      : disk_(std::move(disk)), ns_per_byte_(1e9 / double(bytes_s)) {}

  std::uint32_t depth() const override { return disk_->depth(); }
  void push(const tiers::Io& io) override;
  Status wait(std::vector<tiers::IoResult>& ended, std::chrono::microseconds longest) override;
  void wake() override { disk_->wake(); }
  std::string describe() const override { return disk_->describe() + ", slowed down"; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Clock::time_point due;
    tiers::IoResult result;
  };
  void hold(std::vector<tiers::IoResult>& results);
  bool release(std::vector<tiers::IoResult>& ended);

  std::unique_ptr<tiers::IoQueue> disk_;
  const double ns_per_byte_;
  Clock::time_point free_at_[2]{};  // by direction: when the emulated disk ends all requests so far
  std::unordered_map<std::uint64_t, Clock::time_point> due_;  // by tag, in flight
  std::vector<Held> held_;                                    // completed too early
};

}  // namespace vmem::bench
