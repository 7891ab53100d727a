// Streams that use an allocation beside the stream it is ordered by
// (UndeclaredBlocks::record_stream). A free waits for them before the memory can be reused.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
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

  // The uses of an allocation that is being freed. They are put back, unless the free succeeded.
  class Taken {
   public:
    Taken(OtherUses& owner, std::uintptr_t base, Uses uses) : owner_(&owner), base_(base), uses_(std::move(uses)) {}
    Taken(Taken&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), base_(other.base_), uses_(std::move(other.uses_)) {}
    Taken& operator=(Taken&&) = delete;
    ~Taken() {
      if (owner_ != nullptr) owner_->put_back(base_, std::move(uses_));
    }
    const Uses& uses() const { return uses_; }
    void freed() { owner_ = nullptr; }

   private:
    OtherUses* owner_;
    std::uintptr_t base_;
    Uses uses_;
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
      if (std::erase(uses.streams, stream) == 0) continue;
      auto marked = mark();
      if (!marked) uses.streams.push_back(stream);
      if (!marked) return std::unexpected(std::move(marked).error());
      uses.marks.push_back(*marked);
    }
    return {};
  }

 private:
  void put_back(std::uintptr_t base, Uses uses);

  std::atomic<bool> any_{false};  // ever: most programs have none, and free often
  std::mutex mutex_;
  std::unordered_map<std::uintptr_t, Uses> by_base_;
};

}  // namespace vmem::runtime
