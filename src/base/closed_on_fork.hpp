// Descriptors that a forked child does not keep: connections and locks belong to the process that made
// them. In a child, a connection's peer would not learn of the parent's end, and a lock would stay.
#pragma once

#include <utility>

namespace vmem {

class ClosedOnFork {
 public:
  ClosedOnFork() = default;
  // `descriptor` is open until this ends. Past kMost of them, children keep it.
  explicit ClosedOnFork(int descriptor) noexcept;
  ~ClosedOnFork();
  ClosedOnFork(ClosedOnFork&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}
  ClosedOnFork& operator=(ClosedOnFork&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  static constexpr int kMost = 4096;

 private:
  int slot_ = -1;
};

}  // namespace vmem
