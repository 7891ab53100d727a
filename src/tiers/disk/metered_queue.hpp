// Measures the throughput of a queue's path in each direction, for the decision whether to
// compress. Requests that end short count with the bytes that moved.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tiers/disk/path_rate.hpp"
#include "tiers/io/io_queue.hpp"

namespace vmem::tiers {

class MeteredQueue final : public IoQueue {
 public:
  using ClockNs = std::function<std::uint64_t()>;
  MeteredQueue(std::unique_ptr<IoQueue> inner, ClockNs now_ns);

  // Bytes per second; 0: not measured yet.
  struct Rates {
    double write_bytes_s = 0, read_bytes_s = 0;
    std::uint64_t write_measurements = 0;
  };
  Rates rates() const;  // any thread

  std::uint32_t depth() const override { return inner_->depth(); }
  void push(const Io& io) override;
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override;
  void wake() override { inner_->wake(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  PathRate& rate_of(Io::Kind kind) { return kind == Io::Kind::read ? reading_ : writing_; }
  void publish();

  const std::unique_ptr<IoQueue> inner_;
  const ClockNs now_ns_;
  // The queue's thread.
  struct InFlight {
    Io::Kind kind;
    std::uint32_t bytes;
  };
  std::vector<InFlight> in_flight_;  // by tag: REQUIRES tags below depth()
  PathRate writing_, reading_;
  std::uint64_t published_ = 0;        // measurements of both, last published
  std::uint64_t waited_until_ns_ = 0;  // end of the last wait: time of its results

  mutable std::mutex mutex_;
  Rates rates_;  // guarded by mutex_
};

}  // namespace vmem::tiers
