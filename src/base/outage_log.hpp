// Limits the log lines about something that fails for a while: one line when that begins, one for
// each ten seconds that it lasts, and one when it ends.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.hpp"

namespace vmem {

// One thread.
class OutageLog {
 public:
  struct Line {
    std::uint64_t failures = 0;  // of this outage, so far
    std::uint64_t seconds = 0;   // since its first one
  };
  static constexpr std::uint64_t kEveryUs = 10'000'000;

  OutageLog() : clock_(steady()) {}
  explicit OutageLog(const Clock& clock) : clock_(clock) {}  // outlives this

  // Counts one more failure. Returns what to log of it, if anything: an outage that begins within
  // ten seconds of another's line waits for its own.
  std::optional<Line> failed() noexcept {
    const std::uint64_t now_us = clock_.now_us();
    if (failures_++ == 0) began_us_ = now_us;
    if (line_us_ != 0 && now_us < line_us_ + kEveryUs) return std::nullopt;
    line_us_ = now_us;
    said_ = true;
    return line(now_us);
  }
  // It works again. Returns what to log of that, if the outage was logged.
  std::optional<Line> ended() noexcept {
    if (failures_ == 0) return std::nullopt;
    const Line last = line(clock_.now_us());
    const bool said = said_;
    failures_ = 0;
    said_ = false;
    return said ? std::optional(last) : std::nullopt;
  }

 private:
  static const Clock& steady() noexcept {
    static const SteadyClock clock;
    return clock;
  }
  Line line(std::uint64_t now_us) const noexcept {
    return {.failures = failures_, .seconds = (now_us - began_us_) / 1'000'000};
  }

  const Clock& clock_;
  std::uint64_t failures_ = 0;  // of this outage; 0: it works
  std::uint64_t began_us_ = 0;
  std::uint64_t line_us_ = 0;  // when a failure was logged last; 0: never
  bool said_ = false;          // this outage was logged
};

}  // namespace vmem
