// A thread that calls progress() while there is work, and sleeps until there may be more.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "rdma/transport/progressable.hpp"

namespace vmem::rdma {

class ProgressThread {
 public:
  // `progressed` outlives this object, and nobody else progresses it meanwhile. The thread calls
  // `step`, if any, after each progress(): step and a transport's Receiver need no locks between
  // them. `step` returns whether it did any work.
  explicit ProgressThread(Progressable& progressed, std::function<bool()> step = {});
  ~ProgressThread();  // joins; operations in flight stay in flight
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
