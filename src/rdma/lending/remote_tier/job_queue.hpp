// Between the mover and the tier's thread: the mover posts, polls and finishes; the tier's thread
// takes the posts, in order, and completes the jobs. Any thread.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <utility>
#include <variant>
#include <vector>

#include "rdma/lending/remote_tier/page_job.hpp"

namespace vmem::rdma {

// The slot is free; its copies are not needed any more.
struct SlotRelease {
  tiers::SlotId slot;
  CopyPlaces copies;
};
struct ReturnLeases {};  // the tier's last post
struct Hurry {};         // no job waits for long any more

class JobQueue {
 public:
  using Post = std::variant<PageJobRef, SlotRelease, ReturnLeases, Hurry>;

  // The caller wakes the tier's thread after it.
  void post(Post post) {
    const std::lock_guard lock(mutex_);
    const bool is_job = std::holds_alternative<PageJobRef>(post);
    posts_.push_back(std::move(post));
    open_jobs_ += is_job ? 1 : 0;
  }
  std::vector<Post> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(posts_, {});
  }
  void complete(tiers::Completion completion) {
    const std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
    --open_jobs_;
    changed_.notify_all();
  }
  void poll(std::vector<tiers::Completion>& completions) {
    const std::lock_guard lock(mutex_);
    completions.reserve(completions.size() + completions_.size());
    std::ranges::move(completions_, std::back_inserter(completions));
    completions_.clear();
  }
  // Waits until every posted job is complete.
  void finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_jobs_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_.
  std::vector<Post> posts_;
  std::vector<tiers::Completion> completions_;
  std::uint64_t open_jobs_ = 0;
};

}  // namespace vmem::rdma
