// The end of a tier: leave() waits until the lenders have confirmed that they have their leases
// back. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

namespace vmem::rdma {

class LeaseReturns {
 public:
  // All leases have been returned; the lenders' answers are outstanding.
  void sent(std::uint32_t leases) {
    const std::lock_guard lock(mutex_);
    outstanding_ = leases;
    changed_.notify_all();
  }
  // The lender answered or is gone.
  void ended() {
    const std::lock_guard lock(mutex_);
    --*outstanding_;
    changed_.notify_all();
  }
  // False: a lender has not answered in time.
  bool wait(std::uint64_t most_us) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::microseconds(most_us), [&] { return outstanding_ == 0u; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::uint32_t> outstanding_;  // protected by mutex_; nullopt: not sent yet
};

}  // namespace vmem::rdma
