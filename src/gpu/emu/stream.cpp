#include "gpu/emu/stream.hpp"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "gpu/emu/machine.hpp"

namespace vmem::emu {
namespace {

std::uint64_t next_stream_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

Stream::Stream(std::shared_ptr<Context> context, StreamKind kind)
    : context_(std::move(context)), kind_(kind), id_(next_stream_id()), has_worker_(machine().config().workers) {}

std::uint64_t Stream::push(Work work, std::vector<Fence> fences, AfterFault after_fault, Wait wait) {
  const std::lock_guard lock(mutex_);
  // The thread first, because its start can fail: work without a worker would never complete.
  if (has_worker_ && !worker_started_) {
    std::thread([self = shared_from_this()] { self->work_loop(); }).detach();
    worker_started_ = true;
  }
  queue_.push_back({std::move(work), std::move(fences), after_fault, std::move(wait)});
  const std::uint64_t ticket = submitted_.load(std::memory_order_relaxed) + 1;
  submitted_.store(ticket, std::memory_order_release);
  if (worker_sleeps_) {
    worker_sleeps_ = false;
    work_arrived_.notify_one();
  }
  return ticket;
}

bool Stream::run_if_idle(const std::function<void()>& work) {
  const std::lock_guard lock(mutex_);
  if (!idle()) return false;
  work();
  return true;
}

bool Stream::step() {
  std::unique_lock lock(mutex_);
  if (queue_.empty()) return false;
  // StepScheduler steps one stream at a time: nobody else pops it.
  const Entry& next = queue_.front();
  lock.unlock();
  const auto passed = [](const Fence& fence) { return fence.stream->completed(fence.ticket); };
  if (!std::ranges::all_of(next.fences, passed) || (next.wait.over && !next.wait.over())) return false;
  lock.lock();
  Entry entry = std::move(queue_.front());
  queue_.pop_front();
  const bool last = closed_ && queue_.empty();
  lock.unlock();
  run(entry);
  if (last) context_->forget_stream(this);
  return true;
}

bool Stream::idle() const {
  return completed_.load(std::memory_order_acquire) == submitted_.load(std::memory_order_acquire);
}

void Stream::wait(std::uint64_t ticket) const {
  if (!has_worker_) return machine().steps().run_until([&] { return completed(ticket); });
  std::uint64_t completed = completed_.load(std::memory_order_acquire);
  while (completed < ticket) {
    completed_.wait(completed, std::memory_order_acquire);
    completed = completed_.load(std::memory_order_acquire);
  }
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  work_arrived_.notify_one();
}

void Stream::work_loop() {
  pthread_setname_np(pthread_self(), "emu-stream");
  // 1 ns: copies sleep to keep their link's rate, and the default slack of 50 µs is too coarse.
  prctl(PR_SET_TIMERSLACK, 1);
  std::unique_lock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !closed_) {
      worker_sleeps_ = true;
      work_arrived_.wait(lock);
    }
    worker_sleeps_ = false;
    if (queue_.empty()) break;
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    for (const Fence& fence : entry.fences) fence.stream->wait(fence.ticket);
    while (entry.wait.over && !entry.wait.over()) entry.wait.pause();
    run(entry);
    lock.lock();
  }
  lock.unlock();
  context_->forget_stream(this);
}

void Stream::run(Entry& entry) {
  if (entry.after_fault == AfterFault::run || context_->fault() == CUDA_SUCCESS) entry.work();
  entry = {};  // releases the work's objects before the ticket completes
  completed_.fetch_add(1, std::memory_order_release);
  completed_.notify_all();
}

}  // namespace vmem::emu
