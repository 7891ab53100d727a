#include "tiers/disk/metered_queue.hpp"

#include <algorithm>

namespace vmem::tiers {

MeteredQueue::MeteredQueue(std::unique_ptr<IoQueue> inner, ClockNs now_ns)
    : inner_(std::move(inner)), now_ns_(std::move(now_ns)), in_flight_(inner_->depth()), waited_until_ns_(now_ns_()) {}

MeteredQueue::Rates MeteredQueue::rates() const {
  const std::lock_guard lock(mutex_);
  return rates_;
}

void MeteredQueue::push(const Io& io) {
  in_flight_[io.tag] = {io.kind, io.bytes};
  inner_->push(io);
  rate_of(io.kind).begins(io.bytes, waited_until_ns_);
  publish();
}

Status MeteredQueue::wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) {
  const std::size_t before = ended.size();
  auto waited = inner_->wait(ended, longest);
  waited_until_ns_ = now_ns_();
  for (std::size_t i = before; i < ended.size(); ++i) {
    const InFlight& io = in_flight_[ended[i].tag];
    const auto moved_bytes = std::uint64_t(std::max<std::int64_t>(ended[i].result, 0));
    rate_of(io.kind).ends(io.bytes, moved_bytes, waited_until_ns_);
  }
  publish();
  return waited;
}

void MeteredQueue::publish() {
  const std::uint64_t measurements = writing_.measurements() + reading_.measurements();
  if (std::exchange(published_, measurements) == measurements) return;
  const std::lock_guard lock(mutex_);
  rates_ = {writing_.bytes_s(), reading_.bytes_s(), writing_.measurements()};
}

}  // namespace vmem::tiers
