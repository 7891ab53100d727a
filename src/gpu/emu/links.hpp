// The links between memories, as far as their speed is concerned: a copy keeps its link busy for as long as its bytes
// take at the link's rate, and copies on one link follow each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>

namespace vmem::emu {

class Link {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Link(double gbps) : gbps_(gbps) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // A transfer that could begin at `start`: claims the link behind the transfers it already has and returns when this
  // one is over.
  Clock::time_point occupy(Clock::time_point start, std::size_t bytes, Clock::duration fixed);
  // The transfer took longer than claimed (the memory itself is slower than the link).
  void extend(Clock::time_point end);

 private:
  const double gbps_;  // 0: takes no time beyond the fixed cost
  std::mutex mutex_;   // leaf
  Clock::time_point busy_until_{};
};

// Runs `move` (which moves the bytes) on up to two links at once (a direction, and what both directions share) and
// returns when the slower of the move and the links is done.
template <class Move>
void transfer(Link* link, Link* shared, std::size_t bytes, Link::Clock::duration fixed, Move move);

void sleep_until(Link::Clock::time_point time);

template <class Move>
void transfer(Link* link, Link* shared, std::size_t bytes, Link::Clock::duration fixed, Move move) {
  if (!link) return move();
  const auto start = Link::Clock::now();
  auto end = link->occupy(start, bytes, fixed);
  if (shared) end = std::max(end, shared->occupy(start, bytes, {}));
  move();
  const auto moved = Link::Clock::now();
  if (moved < end) return sleep_until(end);
  link->extend(moved);
  if (shared) shared->extend(moved);
}

}  // namespace vmem::emu
