// Limits log lines of a repeated event: the n-th occurrence is logged, with the count, if n is a
// power of two.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace vmem {

// Any thread.
class LogLimit {
 public:
  struct Occurrence {
    std::uint64_t count = 0;  // occurrences so far, this one included
    bool logged = false;      // log this occurrence
  };

  // Counts one more occurrence.
  Occurrence next() noexcept {
    const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    return {.count = count, .logged = std::has_single_bit(count)};
  }

  std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // The cause has ended: the next occurrence counts as the first.
  void reset() noexcept { count_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace vmem
