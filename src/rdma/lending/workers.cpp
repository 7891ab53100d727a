#include "rdma/lending/workers.hpp"

#include <sys/prctl.h>

#include <utility>

#include "base/memory_reserve.hpp"

namespace vmem::rdma {

Workers::Workers(std::uint32_t threads, Work on_done) : on_done_(std::move(on_done)) {
  for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// An exception out of a thread would end the process.
Workers::Ended Workers::carry_out(const Work& work) noexcept {
  try {
    work();
    return Ended::done;
  } catch (...) {
    return Ended::no_memory;
  }
}

void Workers::post(Work work, Then then) {
  if (threads_.empty()) {
    const Ended how = carry_out(work);
    const std::lock_guard lock(mutex_);
    ended_.push_back({std::move(then), how});
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({std::move(work), std::move(then)});
  }
  wanted_.notify_one();
}

bool Workers::finish() {
  std::vector<Over> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (const Over& each : ended) each.then(each.how);
  return !ended.empty();
}

void Workers::run() {
  ::prctl(PR_SET_NAME, "vmem-node-work");
  MemoryReserve reserve;
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Task task = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    (void)reserve.refill();
    const Ended how = carry_out(task.work);
    task.work = {};
    lock.lock();
    ended_.push_back({std::move(task.then), how});
    lock.unlock();
    on_done_();
    lock.lock();
  }
}

}  // namespace vmem::rdma
