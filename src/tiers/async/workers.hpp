// Threads for work that would delay a tier's thread: checksums, compression, file system calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tiers/async/inbox.hpp"

namespace vmem::tiers {

class Workers {
 public:
  // no_memory: the work threw std::bad_alloc; its result is unknown.
  enum class Ended : std::uint8_t { done, no_memory };
  using Work = std::move_only_function<void(std::uint32_t worker)>;  // worker: 0 to threads - 1
  using Then = std::move_only_function<void(Ended)>;
  // Called by a worker when work has ended. The task calls its Then; Deliver posts the task to the
  // tier's thread, or runs it.
  using Deliver = std::function<void(Inbox::Task)>;
  // `name`: of the threads, at most 15 characters. 0 threads: post() does the work itself.
  Workers(const char* name, std::uint32_t threads, Deliver deliver);
  ~Workers();  // finishes all posted work first
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Any thread. Work begins in the order of posting. `work` throws nothing but std::bad_alloc.
  void post(Work work, Then then);

 private:
  struct Job {
    Work work;
    Then then;
  };
  void do_work(Job job, std::uint32_t worker);
  void stop();
  void run(std::uint32_t worker);

  const char* const name_;
  const Deliver deliver_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable wanted_;
  std::deque<Job> posted_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vmem::tiers
