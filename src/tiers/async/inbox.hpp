// Tasks that other threads post to a tier's thread. They run there, in the order of posting.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace vmem::tiers {

class Inbox {
 public:
  using Task = std::move_only_function<void()>;
  // `wake` ends the wait of the tier's thread. It is called under the lock, so a task runs only
  // after its poster has left the inbox. So the tier may be destroyed after its last task.
  explicit Inbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Any thread.
  void post(Task task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    wake_();
  }
  // Drops the tasks that have not run.
  void clear() {
    std::deque<Task> tasks;  // destroyed after the lock: a task may own what uses the inbox
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  // The tier's thread: runs the tasks posted before the call. False: there were none. If one
  // throws, those behind it stay posted.
  bool run() {
    const std::size_t count = posted();
    for (std::size_t i = 0; i < count; ++i) take()();
    return count != 0;
  }

 private:
  std::size_t posted() {
    const std::lock_guard lock(mutex_);
    return tasks_.size();
  }
  Task take() {
    const std::lock_guard lock(mutex_);
    Task first = std::move(tasks_.front());
    tasks_.pop_front();
    return first;
  }

  const std::function<void()> wake_;
  std::mutex mutex_;
  std::deque<Task> tasks_;  // guarded by mutex_
};

}  // namespace vmem::tiers
