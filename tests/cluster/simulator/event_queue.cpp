#include "cluster/simulator/event_queue.hpp"

#include <algorithm>

namespace vmem::cluster::simulator {

void EventQueue::at(std::uint64_t time_us, std::function<void()> run) {
  queue_.emplace(std::pair{std::max(time_us, now_us_), posted_++}, std::move(run));
}

void EventQueue::run_until(std::uint64_t time_us, const std::function<bool()>& stop) {
  while (!queue_.empty() && queue_.begin()->first.first <= time_us) {
    const auto event = queue_.extract(queue_.begin());
    now_us_ = event.key().first;
    ++events_;
    event.mapped()();
    if (stop && stop()) return;
  }
  now_us_ = std::max(now_us_, time_us);
}

}  // namespace vmem::cluster::simulator
