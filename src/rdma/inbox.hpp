// What any thread hands to the one that progresses something. That one is woken, through a descriptor, only where it said that it
// is about to sleep.
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
  // There is something to do that was not posted here.
  void nudge() {
    bool asleep = false;
    {
      const std::lock_guard lock(mutex_);
      asleep = std::exchange(armed_, false);
    }
    if (asleep) wake();
  }
  // Ends the sleep under way, or the next one.
  void wake() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(descriptor_.get(), &one, sizeof(one));
  }
  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

  // Whose inbox it is. In the order of the posts.
  std::vector<T> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(items_, {});
  }
  // From now on posts make descriptor() readable. False: there was one already.
  bool arm() {
    const std::lock_guard lock(mutex_);
    armed_ = items_.empty();
    return armed_;
  }
  // After the sleep.
  void disarm() {
    std::uint64_t count = 0;
    (void)!::read(descriptor_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    armed_ = false;
  }
  // Negative where the system gave none.
  int descriptor() const noexcept { return descriptor_.get(); }

 private:
  const FileDescriptor descriptor_{::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  mutable std::mutex mutex_;
  std::vector<T> items_;  // protected by mutex_
  bool armed_ = false;    // protected by mutex_
};

}  // namespace vmem::rdma
