// Virtual time: events run in the order of their times, and in the order of their posting at one
// time, so a run is repeated by its seed. Nothing waits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/clock.hpp"

namespace vmem::cluster::simulator {

class EventQueue final : public Clock {
 public:
  std::uint64_t now_us() const noexcept override { return now_us_; }
  std::uint64_t events() const noexcept { return events_; }  // that have run
  // A time that has passed counts as now.
  void at(std::uint64_t time_us, std::function<void()> run);
  void after(std::uint64_t wait_us, std::function<void()> run) { at(now_us_ + wait_us, std::move(run)); }
  // Runs the events up to the time, unless `stop` says otherwise after one of them.
  void run_until(std::uint64_t time_us, const std::function<bool()>& stop = {});

 private:
  std::uint64_t now_us_ = 1;  // 0 means no time
  std::uint64_t posted_ = 0, events_ = 0;
  // By time and order of posting.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::function<void()>> queue_;
};

}  // namespace vmem::cluster::simulator
