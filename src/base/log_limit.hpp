// Keeps what happens again and again from filling the log: the n-th occurrence is logged if n is a
// power of two, with the count.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace vmem {

// Any thread may call.
class LogLimit {
 public:
  struct Occurrence {
    std::uint64_t count = 0;  // of occurrences, this one included
    bool logged = false;      // whether this one is to be logged
  };

  // Counts one more occurrence.
  Occurrence next() noexcept {
    const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    return {.count = count, .logged = std::has_single_bit(count)};
  }

  std::uint64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  // The trouble has ended: its next occurrence is the first again.
  void reset() noexcept { count_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace vmem
