// The throughput of a path in one direction, measured from its requests. Only time with at least
// kBusyBytes in flight counts, when the path is the bottleneck: an idle disk is not slow. Recent
// windows weigh most, by their bytes and time: a burst that a disk's cache absorbs is paid for
// later.
//
// Requests that end at the same time, e.g. those that a disk reports together, count together.
//
// Pure: the clock is the caller's. One thread.
#pragma once

#include <cstdint>

namespace vmem::tiers {

class PathRate {
 public:
  static constexpr std::uint64_t kBusyBytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;
  static constexpr double kKept = 0.7;  // factor on the weight of earlier windows

  void begins(std::uint64_t bytes, std::uint64_t now_ns) {
    pass(now_ns);
    under_way_bytes_ += bytes;
  }
  // `moved_bytes` of `bytes` were transferred.
  void ends(std::uint64_t bytes, std::uint64_t moved_bytes, std::uint64_t now_ns) {
    pass(now_ns);
    if (was_busy_) moved_bytes_ += moved_bytes;
    under_way_bytes_ -= bytes;
  }
  double bytes_s() const { return seconds_ > 0 ? bytes_ / seconds_ : 0; }  // 0: unknown yet
  std::uint64_t measurements() const { return count_; }                    // closed windows

 private:
  void pass(std::uint64_t now_ns) {
    if (now_ns == last_ns_) return;
    if (moved_bytes_ >= kWindowBytes) close_window();
    was_busy_ = under_way_bytes_ >= kBusyBytes;
    if (was_busy_) busy_ns_ += now_ns - last_ns_;
    last_ns_ = now_ns;
  }
  void close_window() {
    bytes_ = kKept * bytes_ + double(moved_bytes_);
    seconds_ = kKept * seconds_ + double(busy_ns_) * 1e-9;
    ++count_;
    moved_bytes_ = busy_ns_ = 0;
  }

  std::uint64_t under_way_bytes_ = 0, last_ns_ = 0;
  std::uint64_t moved_bytes_ = 0, busy_ns_ = 0;  // of the open window
  bool was_busy_ = false;                        // in the interval before last_ns_
  std::uint64_t count_ = 0;
  double bytes_ = 0, seconds_ = 0;  // weighted sums over closed windows
};

}  // namespace vmem::tiers
