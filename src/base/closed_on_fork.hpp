// Closes descriptors in a forked child: connections and locks belong to the process that made them.
// If a child kept a connection, the peer would not learn of the parent's end; a kept lock would
// stay locked.
#pragma once

#include <utility>

#include "base/file_descriptor.hpp"

namespace vmem {

class ClosedOnFork {
 public:
  ClosedOnFork() = default;
  // REQUIRES: `descriptor` stays open until this object ends. Beyond kMost descriptors, children
  // keep further ones.
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

// Owns a descriptor that forked children do not keep. The descriptor is registered while open, so a
// child never closes a number that was reused for another file. A child forked between opening and
// registration keeps the descriptor until exec.
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
