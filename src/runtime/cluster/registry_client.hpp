// Reads and changes records of a cluster's registry, over a connection of its own, and waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/registry/registry.hpp"
#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

// Thread: one, the owner's.
class RegistryClient {
 public:
  // All calls together wait for at most most_us. Errors: those of open_registry.
  static Result<std::unique_ptr<RegistryClient>> open(const RegistryAccess& access, std::uint64_t most_us);
  static Result<std::unique_ptr<RegistryClient>> open(const RegistryOpener& opener, std::uint64_t most_us);
  // All records whose keys begin with the prefix, as of a time after those that were read before.
  // Errors: TIMEOUT, and others, with what the registry's servers said.
  Result<std::vector<cluster::Record>> read(const std::string& prefix);
  // Whether the conditions held. Errors: as of read(); after TIMEOUT it may be carried out still.
  Result<bool> commit(cluster::Commit commit);

 private:
  explicit RegistryClient(std::uint64_t most_us)
      : end_(std::chrono::steady_clock::now() + std::chrono::microseconds(most_us)) {}
  Result<cluster::Reply> ask(cluster::RegistryRequest request);
  void ready();
  bool wait();

  const std::chrono::steady_clock::time_point end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;  // protected by mutex_
  std::unique_ptr<cluster::Registry> registry_;
};

}  // namespace vmem::runtime
