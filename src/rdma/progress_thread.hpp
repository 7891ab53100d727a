// A thread that progresses something: for as long as there is something to do, then it sleeps until there may be again.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "rdma/progressable.hpp"

namespace vmem::rdma {

class ProgressThread {
 public:
  // What is progressed outlives this, and nobody else does it meanwhile. `step`, if there is one, is called after each progress, on
  // the same thread: what it does, and a transport's Receiver, need no locks among themselves. It says whether there was something
  // to do.
  explicit ProgressThread(Progressable& progressed, std::function<bool()> step = {});
  ~ProgressThread();  // joins; what is under way stays so
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void run();

  Progressable& progressed_;
  const std::function<bool()> step_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::rdma
