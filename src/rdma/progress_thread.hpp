// A thread that progresses a transport: for as long as there is something to do, then it sleeps until there may be again.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "rdma/transport.hpp"

namespace vmem::rdma {

class ProgressThread {
 public:
  // The transport outlives this, and nobody else progresses it meanwhile. `step`, if there is one, is called after each progress, on
  // the same thread: what it does, and the Receiver, need no locks among themselves. It says whether there was something to do.
  explicit ProgressThread(Transport& transport, std::function<bool()> step = {});
  ~ProgressThread();  // joins; what is under way stays so
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void run();

  Transport& transport_;
  const std::function<bool()> step_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::rdma
