// The links between memories, as far as their speed is concerned: a copy keeps its link busy for as long as its bytes
// take at the link's rate, and copies on one link follow each other.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <span>

namespace vmem::emu {

class Link {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Link(double gbps) : gbps_(gbps) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  bool throttles() const { return gbps_ > 0; }
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

// Runs `move` (which moves the bytes) on all of the links at once and returns when the slowest of the move and the links is done.
// The first link takes the fixed cost.
template <class Move>
void transfer(std::span<Link* const> links, std::size_t bytes, Link::Clock::duration fixed, Move move);

void sleep_until(Link::Clock::time_point time);

template <class Move>
void transfer(std::span<Link* const> links, std::size_t bytes, Link::Clock::duration fixed, Move move) {
  if (links.empty()) return move();
  const auto start = Link::Clock::now();
  auto end = links.front()->occupy(start, bytes, fixed);
  for (Link* link : links.subspan(1)) end = std::max(end, link->occupy(start, bytes, {}));
  move();
  const auto moved = Link::Clock::now();
  if (moved < end) return sleep_until(end);
  for (Link* link : links) link->extend(moved);
}

}  // namespace vmem::emu
