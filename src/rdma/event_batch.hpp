// Events that a transport reported and that were not handled yet. A step handles few of them, so
// that MemoryReserve, which a thread refills between steps, suffices for each; where handling one
// throws, only that one is dropped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "rdma/transport.hpp"

namespace vmem::rdma {

class EventBatch {
 public:
  static constexpr std::size_t kAtOnce = 64;

  // Calls `handle(event)` for the next ones; when none is left, `source.poll(events)` for more.
  // False: there was none.
  template <class Source, class Handle>
  bool handle_some(Source& source, Handle&& handle) {
    if (next_ == events_.size()) {
      events_.clear();
      next_ = 0;
      source.poll(events_);
    }
    const std::size_t end = std::min(events_.size(), next_ + kAtOnce);
    const bool any = next_ < end;
    while (next_ < end) handle(events_[next_++]);
    return any;
  }

 private:
  std::vector<Event> events_;
  std::size_t next_ = 0;
};

}  // namespace vmem::rdma
