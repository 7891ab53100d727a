// How many bytes may be in flight to a node in one direction: what its path delivers within its
// least delay, and one transfer more, which waits so that the path is never idle. A slow or
// congested path thus holds little; each of several nodes that share a path gets an equal share.
//
// The least delay is that of a transfer that did not wait for others. It is measured again from
// time to time: transfers then go alone, for as long as two of them take.
//
// Pure. Times are microseconds of one clock.
#pragma once

#include <cstdint>
#include <limits>

namespace vmem::rdma {

class FlowWindow {
 public:
  // What end() has to know of a transfer.
  struct Begun {
    std::uint64_t at_us = 0, bytes = 0;
    std::uint64_t delivered = 0, delivered_us = 0;
    bool alone = false;
  };

  // `most_bytes`: in flight; a single transfer may be larger. `least_queue_us`: so much as the path
  // delivers in that time may be in flight, even where its least delay is shorter.
  explicit FlowWindow(std::uint64_t most_bytes, std::uint64_t least_queue_us = 0)
      : most_bytes_(most_bytes), least_queue_us_(least_queue_us) {}

  // Whether a transfer of so many bytes may begin now.
  bool has_room(std::uint64_t bytes, std::uint64_t now_us);
  Begun begin(std::uint64_t bytes, std::uint64_t now_us);
  void delivered(const Begun& begun, std::uint64_t now_us);
  // It ended otherwise, which says nothing about the path.
  void failed(const Begun& begun) { in_flight_ -= begun.bytes; }

  std::uint64_t in_flight_bytes() const { return in_flight_; }
  double bytes_per_us() const { return rate_; }  // 0: not known yet
  std::uint64_t least_delay_us() const { return least_us_; }

 private:
  std::uint64_t usual_bytes(std::uint64_t bytes) const;
  void note_rate(const Begun& begun, std::uint64_t now_us);
  void note_delay(const Begun& begun, std::uint64_t now_us);

  const std::uint64_t most_bytes_, least_queue_us_;
  std::uint64_t in_flight_ = 0;
  std::uint64_t delivered_ = 0, delivered_us_ = 0;  // bytes in total; when the last of them came
  std::uint64_t full_us_ = 0;                       // when has_room last said no
  double rate_ = 0;                                 // smoothed
  double delay_us_ = 0;                             // smoothed
  std::uint64_t least_us_ = 0, least_at_us_ = 0;    // the least delay, and when it was seen
  // A new measurement of the least delay: how many transfers still have to go alone, and the least
  // of those that did.
  static constexpr std::uint64_t kNotMeasured = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t alone_ = 1;
  std::uint64_t measured_us_ = kNotMeasured;
};

}  // namespace vmem::rdma
