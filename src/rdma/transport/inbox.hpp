// Items from any thread to the progressing thread. Posts wake that thread through a descriptor,
// and only if it has armed the inbox before sleeping.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"

namespace vmem::rdma {

template <class T>
class Inbox {
 public:
  // Any thread.
  void post(T item) {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      items_.push_back(std::move(item));
      asleep = std::exchange(armed_, false);
    }
    if (asleep) wake();
  }
  // Wakes the thread, if armed, for work that is not posted here.
  void nudge() {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      asleep = std::exchange(armed_, false);
    }
    if (asleep) wake();
  }
  // Ends the current sleep, or the next one.
  void wake() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(descriptor_.get(), &one, sizeof(one));
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

  // Only the owning thread calls the functions below. Items come in the order of the posts.
  std::vector<T> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }
  // From now on posts make descriptor() readable. False: the inbox has items already.
  bool arm() {
    const std::lock_guard lock(mutex_);
    armed_ = items_.empty();
    return armed_;
  }
  // Call after the sleep.
  void disarm() {
    std::uint64_t count = 0;
    (void)!::read(descriptor_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    armed_ = false;
  }
  // Negative if eventfd() failed.
  int descriptor() const noexcept { return descriptor_.get(); }

 private:
  const FileDescriptor descriptor_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  mutable std::mutex mutex_;
  std::vector<T> items_;  // protected by mutex_
  bool armed_ = false;    // protected by mutex_
};

}  // namespace vmem::rdma
