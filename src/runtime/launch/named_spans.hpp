// Spans that the calling thread's current launch has named already.
#pragma once

#include <array>
#include <cstdint>

namespace vmem::runtime {

// A hash collision forgets a span; naming a span twice is harmless.
class NamedSpans {
 public:
  void begin() { ++launch_; }
  // False: named before.
  bool add(std::uint32_t granule) {
    Entry& entry = entries_[(granule * 0x9e3779b9u) >> (32 - kBits)];
    if (entry.launch == launch_ && entry.granule == granule) return false;
    entry = {launch_, granule};
    return true;
  }

 private:
  static constexpr unsigned kBits = 9;
  struct Entry {
    std::uint64_t launch = 0;
    std::uint32_t granule = 0;
  };
  std::array<Entry, 1u << kBits> entries_{};
  std::uint64_t launch_ = 0;
};

}  // namespace vmem::runtime
