// Streams that use an allocation beside the stream it is ordered by
// (UndeclaredBlocks::record_stream). A free waits for them before the memory can be reused.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// Any thread.
class OtherUses {
 public:
  struct Uses {
    std::vector<StreamId> streams;     // still open
    std::vector<std::uint64_t> marks;  // of work on streams that were closed, or are per thread
  };

  // By the allocation's address. An allocation may have several after a free that failed.
  using ByBase = std::multimap<std::uintptr_t, Uses>;

  // The uses of an allocation that is being freed. They are put back, which needs no memory, unless
  // the free succeeded.
  class Taken {
   public:
    Taken(OtherUses& owner, ByBase::node_type uses) : owner_(owner), node_(std::move(uses)) {}
    Taken(Taken&&) = default;
    Taken& operator=(Taken&&) = delete;
    ~Taken() {
      if (!node_.empty()) owner_.put_back(std::move(node_));
    }
    const Uses& uses() const {
      static const Uses none;
      return node_.empty() ? none : node_.mapped();
    }
    void add(const Uses& more);  // REQUIRES: it has some
    void freed() { node_ = {}; }

   private:
    OtherUses& owner_;
    ByBase::node_type node_;
  };

  void add_stream(std::uintptr_t base, const StreamId& stream);
  void add_mark(std::uintptr_t base, std::uint64_t mark);
  Taken take(std::uintptr_t base);
  // The stream is about to be closed: `mark()` gives a mark of its work so far, once for each
  // allocation that it uses. An error leaves the remaining allocations as they are.
  template <class Mark>
  Status close(const StreamId& stream, Mark mark) {
    const std::lock_guard lock(mutex_);
    for (auto& [base, uses] : by_base_) {
      const auto found = std::ranges::find(uses.streams, stream);
      if (found == uses.streams.end()) continue;
      auto marked = mark();
      if (!marked) return std::unexpected(std::move(marked).error());
      uses.marks.push_back(*marked);
      uses.streams.erase(found);
    }
    return {};
  }

 private:
  Uses& uses_of(std::uintptr_t base);
  void put_back(ByBase::node_type node) noexcept;

  std::atomic<bool> any_{false};  // ever: most programs have none, and free often
  std::mutex mutex_;
  ByBase by_base_;
};

}  // namespace vmem::runtime
