// Events between the progressing thread and the polling threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class EventQueue {
 public:
  void push(Event event);
  void take(std::vector<Event>& events);  // appends
  bool wait(std::uint64_t most_us);
  // Total since construction.
  std::uint64_t pushed() const;
  // Not yet taken.
  std::size_t pending() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Event> events_;  // protected by mutex_
  std::uint64_t pushed_ = 0;   // protected by mutex_
};

}  // namespace vmem::rdma
