// Threads for what would hold up the one that progresses a transport: checksums over pages, wiping, registering memory.
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
  // Whether the work was done. It throws for lack of memory only: then what it was to find out is not known.
  enum class Ended : std::uint8_t { done, no_memory };
  using Then = std::function<void(Ended)>;
  // No threads: what is posted is done at once, by who posts it. `on_done` is called by the workers when finish() has something.
  Workers(std::uint32_t threads, Work on_done);
  ~Workers();  // after all that was posted is done; what should follow does not
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // `then` follows `work`, on the owner's thread, in finish().
  void post(Work work, Then then);
  // Whether there was something.
  bool finish();

 private:
  struct Job {
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
  std::deque<Job> posted_;   // protected by mutex_
  std::vector<Over> ended_;  // protected by mutex_
  bool stopping_ = false;    // protected by mutex_
  std::vector<std::thread> threads_;
};

}  // namespace vmem::rdma
