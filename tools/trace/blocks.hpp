// Which block lies where, at which time of a trace.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "trace/events.hpp"

namespace vmem::tools {

// Fed with a trace's events in order.
class Blocks {
 public:
  void see(const trace::Event& event);
  // Null: unknown, or not begun yet. Ended ones are still known.
  const trace::BlockBegins* find(trace::Block block) const;
  // The live block that contains the granule; null: none.
  const trace::BlockBegins* at(std::uint32_t granule) const;
  std::size_t count() const { return known_.size(); }
  std::uint64_t live_bytes() const { return live_bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  std::map<trace::Block, trace::BlockBegins> known_;
  std::map<std::uint32_t, trace::Block> live_;  // by first granule
  std::uint64_t live_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace vmem::tools
