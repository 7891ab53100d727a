#include "rdma/transport/progress_thread.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "base/log_limit.hpp"
#include "base/memory_reserve.hpp"
#include "base/of_vmem.hpp"

namespace vmem::rdma {
namespace {

// Longest sleep: bounds the delay of deadlines, and of wakeups that UCX misses. UCX can stall for
// its keepalive interval.
constexpr std::uint64_t kMostIdleUs = 10'000;

// During a transfer there are gaps of a few microseconds without work: sleeping costs more than
// they last.
constexpr std::chrono::microseconds kLinger{10};

constexpr std::chrono::milliseconds kBeforeMemoryComes{1};

}  // namespace

ProgressThread::ProgressThread(Progressable& progressed, std::function<bool()> step)
    : progressed_(progressed), step_(std::move(step)), thread_([this] { run(); }) {}

ProgressThread::~ProgressThread() {
  stopping_.store(true, std::memory_order_release);
  progressed_.wake();
  thread_.join();
}

void ProgressThread::run() {
  ::prctl(PR_SET_NAME, "vmem-node");
  const OfVmem mark;  // a transport may call the driver
  auto busy_until = std::chrono::steady_clock::now();
  MemoryReserve reserve;
  LogLimit lacked_memory;
  while (!stopping_.load(std::memory_order_acquire)) {
    (void)reserve.refill();
    const bool went_on = ran_within_memory([&] {
      bool did = progressed_.progress();
      if (step_) did |= step_();
      if (did) {
        busy_until = std::chrono::steady_clock::now() + kLinger;
      } else if (std::chrono::steady_clock::now() >= busy_until) {
        progressed_.idle(kMostIdleUs);
      }
    });
    if (went_on) continue;
    if (lacked_memory.next().logged) log::write_plain("the process has no memory for vmem's messages to other nodes");
    std::this_thread::sleep_for(kBeforeMemoryComes);
  }
}

}  // namespace vmem::rdma
