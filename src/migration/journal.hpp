// The latest events of pages, to diagnose a launch that accesses an unmapped page. Writer: the
// mover. Readers: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

namespace vmem::migration {

enum class Happened : std::uint8_t {
  mapped_hbm,
  mapped_host,
  mapped_peer,
  unmapped,
  loaded,
  stored,
  returned,
  spilled,
  recalled,
  read_to_hbm,
  freed
};

constexpr std::string_view words(Happened what) {
  switch (what) {
    case Happened::mapped_hbm:
      return "mapped to HBM";
    case Happened::mapped_host:
      return "mapped to host memory";
    case Happened::mapped_peer:
      return "mapped to another GPU's memory";
    case Happened::unmapped:
      return "unmapped";
    case Happened::loaded:
      return "fetched to HBM";
    case Happened::stored:
      return "copied out of HBM";
    case Happened::returned:
      return "moved from another GPU's memory to host memory";
    case Happened::spilled:
      return "written below host memory";
    case Happened::recalled:
      return "read back to host memory";
    case Happened::read_to_hbm:
      return "read from a file to HBM";
    case Happened::freed:
      return "freed";
  }
  return "?";
}

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
