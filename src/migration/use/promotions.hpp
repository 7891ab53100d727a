// Pages that are used in place and worth a frame.
#pragma once

#include <cstddef>
#include <deque>

#include "migration/core.hpp"

namespace vmem::migration {

class Promotions {
 public:
  explicit Promotions(const Core& core) : core_(core) {}

  void add(PageRef ref) {
    if (ref.page().promoting || core_.config.only_asked) return;
    ref.page().promoting = true;
    queue_.push_back(ref);
  }
  bool empty() const { return queue_.empty(); }
  std::size_t size() const { return queue_.size(); }
  // Perhaps not live, or not to be promoted, any more.
  PageRef front() const { return queue_.front(); }
  void pop() { queue_.pop_front(); }
  void forget(const Region& region) {
    std::erase_if(queue_, [&](const PageRef& ref) { return ref.region == &region; });
  }

 private:
  const Core& core_;
  std::deque<PageRef> queue_;
};

}  // namespace vmem::migration
