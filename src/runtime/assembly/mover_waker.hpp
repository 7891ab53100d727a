// Wakes the mover from the tiers' threads, which start before it and end after it.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "migration/mover.hpp"

namespace vmem::runtime {

// Owns the mover, so that no thread wakes a mover that is being created or destroyed.
class MoverWaker {
 public:
  // Any thread.
  void wake() {
    const std::lock_guard lock(mutex_);
    if (mover_) mover_->poke();
  }
  migration::Mover& take(std::unique_ptr<migration::Mover> mover) {
    const std::lock_guard lock(mutex_);
    mover_ = std::move(mover);
    return *mover_;
  }
  // The mover ends without the lock, since it waits for threads that call wake().
  void end() {
    std::unique_ptr<migration::Mover> ending;
    {
      const std::lock_guard lock(mutex_);
      ending = std::move(mover_);
    }
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<migration::Mover> mover_;  // changes under mutex_
};

}  // namespace vmem::runtime
