// The speed of links between memories. A copy occupies its link for its bytes divided by the link's
// rate; copies on one link run one after another.
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
  // Claims the link for a transfer that could begin at `start`, after the transfers already
  // claimed. Returns the end of this transfer.
  Clock::time_point occupy(Clock::time_point start, std::size_t bytes, Clock::duration fixed);
  // Extends the claim of a transfer that took longer because the memory is slower than the link.
  void extend(Clock::time_point end);

 private:
  const double gbps_;  // 0: takes no time beyond the fixed cost
  std::mutex mutex_;   // leaf
  Clock::time_point busy_until_{};
};

// Runs `move` (which moves the bytes) and occupies all links meanwhile. Returns when the move and
// the slowest link are done. The first link takes the fixed cost.
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
