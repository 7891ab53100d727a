// With the setting workers=0 streams have no worker threads: their work runs piece by piece, on the
// threads that call vmem_emu_run or wait for work. A program with one thread then always runs its
// work in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace vmem::emu {

class Stream;

class StepScheduler {
 public:
  void add(const std::shared_ptr<Stream>& stream);
  // Runs at most so many pieces of work, of each stream in turn. Returns how many there were.
  std::size_t run(std::size_t most);
  // Runs work until `done`. While nothing can run, another thread has to make something runnable.
  void run_until(const std::function<bool()>& done);

 private:
  bool run_one();
  std::vector<std::shared_ptr<Stream>> next_round();

  std::mutex running_;                          // one piece at a time; taken before `mutex_`
  std::uint64_t last_ = 0;                      // the last to run; protected by running_
  std::mutex mutex_;                            // protects streams_; leaf
  std::vector<std::weak_ptr<Stream>> streams_;  // by id
};

}  // namespace vmem::emu
