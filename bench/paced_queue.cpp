#include "bench/paced_queue.hpp"

#include <algorithm>

namespace vmem::bench {

void PacedQueue::push(const tiers::Io& io) {
  Clock::time_point& free_at = free_at_[io.kind == tiers::Io::Kind::read ? 0 : 1];
  const auto takes = std::chrono::nanoseconds(std::int64_t(double(io.bytes) * ns_per_byte_));
  free_at = std::max(free_at, Clock::now()) + takes;
  due_[io.tag] = free_at;
  disk_->push(io);
}

void PacedQueue::hold(std::vector<tiers::IoResult>& results) {
  for (const tiers::IoResult& each : results) {
    const auto found = due_.find(each.tag);
    held_.push_back({found->second, each});
    due_.erase(found);
  }
}

bool PacedQueue::release(std::vector<tiers::IoResult>& ended) {
  const auto now = Clock::now();
  const std::size_t before = ended.size();
  std::erase_if(held_, [&](const Held& each) {
    if (each.due > now) return false;
    ended.push_back(each.result);
    return true;
  });
  return ended.size() != before;
}

Status PacedQueue::wait(std::vector<tiers::IoResult>& ended, std::chrono::microseconds longest) {
  if (!held_.empty()) {
    const auto next = std::ranges::min_element(held_, {}, &Held::due)->due;
    const auto until = std::chrono::ceil<std::chrono::microseconds>(next - Clock::now());
    longest = std::clamp(until, std::chrono::microseconds(0), longest);
  }
  std::vector<tiers::IoResult> results;
  VMEM_TRY(disk_->wait(results, longest));
  hold(results);
  release(ended);
  return {};
}

}  // namespace vmem::bench
