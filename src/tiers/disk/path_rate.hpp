// How fast a path takes bytes in one direction, told from its requests. Only time with so much under way counts that the path was the one
// to be waited for: a disk that gets a page now and then is not slow. The last windows count most, by their bytes and their time: what a disk
// takes into a cache all of a sudden is paid for later.
//
// Requests that end at the same time were waited for together, as those are that a disk reports together; they are counted together, too.
//
// Pure: the clock is the caller's. One thread.
#pragma once

#include <cstdint>

namespace vmem::tiers {

class PathRate {
 public:
  static constexpr std::uint64_t kBusyBytes = std::uint64_t{8} << 20;
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{32} << 20;
  static constexpr double kKept = 0.7;  // of the weight of those before, at each window

  void begins(std::uint64_t bytes, std::uint64_t now_ns) {
    pass(now_ns);
    under_way_bytes_ += bytes;
  }
  // `moved_bytes` of them arrived.
  void ends(std::uint64_t bytes, std::uint64_t moved_bytes, std::uint64_t now_ns) {
    pass(now_ns);
    if (was_busy_) moved_bytes_ += moved_bytes;
    under_way_bytes_ -= bytes;
  }
  double bytes_s() const { return seconds_ > 0 ? bytes_ / seconds_ : 0; }  // 0: not known yet
  std::uint64_t measurements() const { return count_; }                    // so far

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
  std::uint64_t moved_bytes_ = 0, busy_ns_ = 0;  // of the window
  bool was_busy_ = false;                        // until last_ns_
  std::uint64_t count_ = 0;
  double bytes_ = 0, seconds_ = 0;  // of the windows, by their weight
};

}  // namespace vmem::tiers
