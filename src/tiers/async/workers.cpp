#include "tiers/async/workers.hpp"

#include <sys/prctl.h>

#include <utility>

#include "base/memory_reserve.hpp"

namespace vmem::tiers {

Workers::Workers(const char* name, std::uint32_t threads, Deliver deliver) : name_(name), deliver_(std::move(deliver)) {
  try {
    for (std::uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (...) {
    stop();
    throw;
  }
}

Workers::~Workers() { stop(); }

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::post(Work work, Then then) {
  if (threads_.empty()) return do_work({std::move(work), std::move(then)}, 0);
  const std::lock_guard lock(mutex_);
  posted_.push_back({std::move(work), std::move(then)});
  wanted_.notify_one();
}

void Workers::do_work(Job job, std::uint32_t worker) {
  const Ended how = ran_within_memory([&] { job.work(worker); }) ? Ended::done : Ended::no_memory;
  job.work = {};
  deliver_([then = std::move(job.then), how]() mutable { then(how); });
}

void Workers::run(std::uint32_t worker) {
  ::prctl(PR_SET_NAME, name_);
  MemoryReserve reserve;
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    Job job = std::move(posted_.front());
    posted_.pop_front();
    lock.unlock();
    (void)reserve.refill();
    do_work(std::move(job), worker);
    lock.lock();
  }
}

}  // namespace vmem::tiers
