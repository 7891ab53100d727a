// Descriptors that a forked child does not keep: connections and locks belong to the process that made
// them. In a child, a connection's peer would not learn of the parent's end, and a lock would stay.
#pragma once

#include <utility>

#include "base/file_descriptor.hpp"

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

// Owns a descriptor that forked children do not keep. It is registered while it is open, so that a
// child never closes a number that has gone to another file. A child that is forked between opening
// and registration keeps it until exec.
class OwnDescriptor {
 public:
  OwnDescriptor() = default;
  explicit OwnDescriptor(FileDescriptor descriptor) noexcept : descriptor_(std::move(descriptor)) {
    if (descriptor_) not_in_children_ = ClosedOnFork(descriptor_.get());
  }
  OwnDescriptor(OwnDescriptor&&) = default;
  OwnDescriptor& operator=(OwnDescriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    descriptor_ = std::move(other.descriptor_);
    not_in_children_ = std::move(other.not_in_children_);
    return *this;
  }
  ~OwnDescriptor() = default;

  explicit operator bool() const noexcept { return bool(descriptor_); }
  int get() const noexcept { return descriptor_.get(); }
  void reset() noexcept {
    not_in_children_ = {};
    descriptor_.reset();
  }

 private:
  FileDescriptor descriptor_;
  ClosedOnFork not_in_children_;  // ends before the descriptor is closed
};

}  // namespace vmem
