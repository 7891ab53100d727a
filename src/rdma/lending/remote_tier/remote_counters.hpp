// The tier's thread counts; any thread reads.
#pragma once

#include <mutex>

#include "rdma/lending/remote_tier/remote_config.hpp"

namespace vmem::rdma {

class RemoteCounters {
 public:
  void add(std::uint64_t RemoteStatistics::* counter, std::uint64_t count = 1) {
    const std::lock_guard lock(mutex_);
    statistics_.*counter += count;
  }
  RemoteStatistics read() const {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  mutable std::mutex mutex_;
  RemoteStatistics statistics_;  // protected by mutex_
};

}  // namespace vmem::rdma
