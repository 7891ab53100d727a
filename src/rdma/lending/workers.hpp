// Threads for work that would delay a transport's progressing thread: checksums of pages, wiping,
// registering memory.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vmem::rdma {

class Workers {
 public:
  using Work = std::function<void()>;
  // no_memory: the work threw, for lack of memory; its result is unknown.
  enum class Ended : std::uint8_t { done, no_memory };
  using Then = std::function<void(Ended)>;
  // 0 threads: post() does the work itself. Workers call `on_done` when finish() has work.
  Workers(std::uint32_t threads, Work on_done);
  ~Workers();  // after all posted work; `then` of unfinished work is not called
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // `then` runs after `work`, on the owner's thread, in finish().
  void post(Work work, Then then);
  // True if any work had ended.
  bool finish();

 private:
  struct Task {
    Work work;
    Then then;
  };
  struct Over {
    Then then;
    Ended how = Ended::done;
  };
  static Ended carry_out(const Work& work) noexcept;
  void run();

  const Work on_done_;
  std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<Task> posted_;  // protected by mutex_
  std::vector<Over> ended_;  // protected by mutex_
  bool stopping_ = false;    // protected by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace vmem::rdma
