#include "rdma/node/flow_window.hpp"

#include <algorithm>
#include <utility>

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kMeasureAgainUs = 10'000'000;
constexpr std::uint32_t kAlone = 2;  // transfers of a new measurement
constexpr double kSmoothing = 0.25;  // share of a new sample
constexpr double kGrowth = 1.25;     // in a round trip, while nothing waits on the path
constexpr double kNoise = 0.125;     // of the least delay

}  // namespace

bool FlowWindow::has_room(std::uint64_t bytes, std::uint64_t now_us) {
  if (in_flight_ == 0) return true;
  const bool room = alone_ == 0 && in_flight_ <= usual_bytes(bytes) && in_flight_ + bytes <= most_bytes_;
  if (!room) full_us_ = now_us;
  return room;
}

// While less waits on the path than half a transfer, the path can take more. Delays vary a little
// without anything waiting.
std::uint64_t FlowWindow::usual_bytes(std::uint64_t bytes) const {
  const double usual = rate_ * static_cast<double>(std::max(least_us_, least_queue_us_));
  const double waiting = rate_ * delay_us_ - usual;
  const double gain = waiting < std::max(static_cast<double>(bytes) / 2, kNoise * usual) ? kGrowth : 1;
  return std::max(bytes, static_cast<std::uint64_t>(gain * usual));
}

FlowWindow::Begun FlowWindow::begin(std::uint64_t bytes, std::uint64_t now_us) {
  const bool alone = in_flight_ == 0;
  in_flight_ += bytes;
  return {.at_us = now_us,
          .bytes = bytes,
          .delivered = delivered_,
          .delivered_us = alone ? now_us : delivered_us_,
          .alone = alone};
}

void FlowWindow::delivered(const Begun& begun, std::uint64_t now_us) {
  in_flight_ -= begun.bytes;
  delivered_ += begun.bytes;
  delivered_us_ = now_us;
  note_rate(begun, now_us);
  note_delay(begun, now_us);
}

// A rate that was not limited by the window says only what the path delivers at least.
void FlowWindow::note_rate(const Begun& begun, std::uint64_t now_us) {
  const std::uint64_t took_us = std::max<std::uint64_t>(now_us - begun.delivered_us, 1);
  const double rate = static_cast<double>(delivered_ - begun.delivered) / static_cast<double>(took_us);
  const bool limited = full_us_ >= begun.at_us;
  if (rate_ == 0) rate_ = rate;
  if (rate > rate_ || limited) rate_ += kSmoothing * (rate - rate_);
}

void FlowWindow::note_delay(const Begun& begun, std::uint64_t now_us) {
  const std::uint64_t delay_us = now_us - begun.at_us;
  delay_us_ += (delay_us_ == 0 ? 1 : kSmoothing) * (static_cast<double>(delay_us) - delay_us_);
  if (alone_ != 0 && begun.alone) {
    measured_us_ = std::min(measured_us_, delay_us);
    if (--alone_ == 0) {
      least_us_ = std::exchange(measured_us_, kNotMeasured);
      least_at_us_ = now_us;
    }
  } else if (delay_us <= least_us_) {
    least_us_ = delay_us;
    least_at_us_ = now_us;
  }
  if (alone_ == 0 && now_us - least_at_us_ >= kMeasureAgainUs) alone_ = kAlone;
}

}  // namespace vmem::rdma
