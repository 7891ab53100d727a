// The latest events of pages, to diagnose a launch that accesses an unmapped page. Writer: the
// mover. Readers: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "trace/events.hpp"

namespace vmem::migration {

using trace::Happened;
using trace::words;

class Journal {
 public:
  struct Entry {
    std::uint64_t at_us = 0;
    std::uint32_t granule = 0, granules = 0;
    Happened what = Happened::unmapped;
  };

  void add(const Entry& entry) {
    const std::lock_guard lock(mutex_);
    entries_[next_++ % entries_.size()] = entry;
  }
  // Events of the page that contains the granule: the latest `most`, oldest first.
  std::vector<Entry> about(std::uint32_t granule, std::size_t most) const {
    const std::lock_guard lock(mutex_);
    std::vector<Entry> found;
    for (std::uint64_t i = next_; i > 0 && next_ - i < entries_.size() && found.size() < most; --i) {
      const Entry& entry = entries_[(i - 1) % entries_.size()];
      if (granule - entry.granule < entry.granules) found.insert(found.begin(), entry);
    }
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::array<Entry, 4096> entries_{};
  std::uint64_t next_ = 0;
};

}  // namespace vmem::migration
