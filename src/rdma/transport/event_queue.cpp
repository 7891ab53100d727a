#include "rdma/transport/event_queue.hpp"

#include <chrono>
#include <iterator>
#include <utility>

namespace vmem::rdma {

void EventQueue::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    ++pushed_;
  }
  arrived_.notify_all();
}

void EventQueue::take(std::vector<Event>& events) {
  const std::lock_guard lock(mutex_);
  events.insert(events.end(), std::make_move_iterator(events_.begin()), std::make_move_iterator(events_.end()));
  events_.clear();
}

bool EventQueue::wait(std::uint64_t most_us) {
  std::unique_lock lock(mutex_);
  return arrived_.wait_for(lock, std::chrono::microseconds(most_us), [&] { return !events_.empty(); });
}

std::uint64_t EventQueue::pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

std::size_t EventQueue::pending() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

}  // namespace vmem::rdma
