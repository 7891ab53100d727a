#include "tiers/io/thread_queue.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"

namespace vmem::tiers {
namespace {

class ThreadQueue final : public IoQueue {
 public:
  explicit ThreadQueue(const UringConfig& config) : files_(config.files), depth_(config.depth) {
    for (std::uint32_t i = 0; i < std::min(depth_, kQueueThreadsMax); ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    posted_one_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  ThreadQueue(const ThreadQueue&) = delete;
  ThreadQueue& operator=(const ThreadQueue&) = delete;

  std::uint32_t depth() const override { return depth_; }
  void push(const Io& io) override {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(io);
    }
    posted_one_.notify_one();
  }
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [&] { return woken_ || !ended_.empty(); });
    woken_ = false;
    ended.insert(ended.end(), ended_.begin(), ended_.end());
    ended_.clear();
    return {};
  }
  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    changed_.notify_one();
  }
  std::string describe() const override { return fmt::format("{} threads (no io_uring)", threads_.size()); }

 private:
  void run() {
    ::prctl(PR_SET_NAME, "vmem-io");
    MemoryReserve reserve;
    std::unique_lock lock(mutex_);
    for (;;) {
      posted_one_.wait(lock, [&] { return stopping_ || !posted_.empty(); });
      if (posted_.empty()) return;
      const Io io = posted_.front();
      posted_.pop_front();
      lock.unlock();
      const std::int64_t result = carry_out(io);
      (void)reserve.refill();
      lock.lock();
      ended_.push_back({io.tag, result});
      changed_.notify_one();
    }
  }
  std::int64_t carry_out(const Io& io) const {
    const int file = files_.empty() ? int(io.file) : files_[io.file];
    const std::uint32_t head = std::min(io.head_bytes, io.bytes);
    const std::array<iovec, 2> parts{{{io.head, head}, {io.memory, io.bytes - head}}};
    const auto offset = static_cast<off_t>(io.offset);
    const ssize_t moved = io.kind == Io::Kind::read ? ::preadv(file, parts.data(), int(parts.size()), offset)
                                                    : ::pwritev(file, parts.data(), int(parts.size()), offset);
    return moved < 0 ? -std::int64_t{errno} : std::int64_t{moved};
  }

  const std::vector<int> files_;
  const std::uint32_t depth_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable posted_one_, changed_;
  std::deque<Io> posted_;
  std::vector<IoResult> ended_;
  bool woken_ = false, stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> make_thread_queue(const UringConfig& config) { return std::make_unique<ThreadQueue>(config); }

Result<std::unique_ptr<IoQueue>> make_io_queue(const UringConfig& config) {
  auto queue = make_uring_queue(config);
  if (queue || queue.error().status != VMEM_ERROR_UNSUPPORTED) return queue;
  auto threads = make_thread_queue(config);
  VMEM_LOG_INFO("files are read and written by {}, more slowly: {}", threads->describe(), queue.error().message);
  return threads;
}

}  // namespace vmem::tiers
