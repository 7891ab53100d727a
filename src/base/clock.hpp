// The clock of all deadlines, passed in so that tests and simulations can step it. Only differences
// are meaningful.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace vmem {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::uint64_t now_us() const noexcept = 0;  // any thread; never goes back
};

class SteadyClock final : public Clock {
 public:
  static std::uint64_t now_ns() noexcept {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
  }
  std::uint64_t now_us() const noexcept override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }
};

// Advances only on request.
class ManualClock final : public Clock {
 public:
  std::uint64_t now_us() const noexcept override { return now_us_.load(std::memory_order_relaxed); }
  void advance(std::uint64_t us) noexcept { now_us_.fetch_add(us, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> now_us_ = 1;  // 0 means no time
};

}  // namespace vmem
