// A thread that progresses a transport: for as long as there is something to do, then it sleeps until there may be again.
#pragma once

#include <atomic>
#include <thread>

#include "rdma/transport.hpp"

namespace vmem::rdma {

class ProgressThread {
 public:
  // The transport outlives this, and nobody else progresses it meanwhile.
  explicit ProgressThread(Transport& transport);
  ~ProgressThread();  // joins; what is under way stays so
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  void run();

  Transport& transport_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::rdma
