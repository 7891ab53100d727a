// Events polled from a transport and not yet handled. A step handles at most kAtOnce of them, so
// that MemoryReserve, refilled between steps, suffices. If handling an event throws, only that
// event is dropped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class EventBatch {
 public:
  static constexpr std::size_t kAtOnce = 64;

  // Calls `handle(event)` for the next events; polls `source` for more when none is left.
  // False: there was no event.
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
  bool used_up() const { return next_ == events_.size(); }

 private:
  std::vector<Event> events_;
  std::size_t next_ = 0;
};

}  // namespace vmem::rdma
