// How fast a path takes bytes in one direction, told from its requests. Only time with so much under way counts that the path was the one
// to be waited for: a disk that gets a page now and then is not slow. A better figure is believed at once, a worse one by and by, since who
// asks wants to know whether the path can do without help.
//
// Pure: the clock is the caller's. One thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace vmem::tiers {

class PathRate {
 public:
  static constexpr std::uint64_t kBusyBytes = std::uint64_t{4} << 20;
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{16} << 20;

  void begins(std::uint64_t bytes, std::uint64_t now_ns) {
    pass(now_ns);
    under_way_bytes_ += bytes;
  }
  // `moved_bytes` of them arrived.
  void ends(std::uint64_t bytes, std::uint64_t moved_bytes, std::uint64_t now_ns) {
    if (pass(now_ns)) moved_bytes_ += moved_bytes;
    under_way_bytes_ -= bytes;
    if (moved_bytes_ >= kWindowBytes && busy_ns_ > 0) close_window();
  }
  double bytes_s() const { return bytes_s_; }            // 0: not known yet
  std::uint64_t measurements() const { return count_; }  // so far

 private:
  // Whether the path was busy until now.
  bool pass(std::uint64_t now_ns) {
    const bool busy = under_way_bytes_ >= kBusyBytes;
    if (busy) busy_ns_ += now_ns - last_ns_;
    last_ns_ = now_ns;
    return busy;
  }
  void close_window() {
    const double found = double(moved_bytes_) / (double(busy_ns_) * 1e-9);
    bytes_s_ = count_ == 0 ? found : std::max(found, bytes_s_ + (found - bytes_s_) / 4);
    ++count_;
    moved_bytes_ = busy_ns_ = 0;
  }

  std::uint64_t under_way_bytes_ = 0, last_ns_ = 0;
  std::uint64_t moved_bytes_ = 0, busy_ns_ = 0;  // of the window
  std::uint64_t count_ = 0;
  double bytes_s_ = 0;
};

}  // namespace vmem::tiers
