// Driver decorator for tests of driver failures. It passes every call to another driver and counts
// it. It can fail the n-th call, of any function or of one, with a chosen result, without passing
// it on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gpu/driver.hpp"

namespace vmem::gpu {

// The functions of a driver table cannot carry a `this` pointer. Therefore one injector is in force
// per process: the latest made that still lives. Thread-safe: plans may change while other threads
// call through the driver. The injector must outlive every call through its driver.
class FaultInjector {
 public:
  explicit FaultInjector(std::shared_ptr<const Driver> inner);
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // The driver for the code under test. A function that the inner driver lacks is null here too.
  std::shared_ptr<const Driver> driver() const { return decorated_; }

  // Names are base names of the table ("cuMemMap"). `n` counts from 1, starting now. Each plan
  // fires once.
  void fail_nth(std::uint64_t n, CUresult result);
  void fail_nth(std::string_view function, std::uint64_t n, CUresult result);
  // Fails every call of `function` from now on, until called again with CUDA_SUCCESS.
  void fail_always(std::string_view function, CUresult result);
  // Removes all plans; keeps counts and log.
  void clear_plans();

  std::uint64_t calls() const;
  std::uint64_t calls(std::string_view function) const;
  // Log: the names of the calls since `start_log`, in the order in which they began.
  void start_log();
  std::vector<std::string> log() const;

  // `hook` runs before each call, outside any lock: a test can block a thread inside the driver.
  void on_call(std::function<void(std::string_view function)> hook);

  struct Access;  // for the table's functions

 private:
  void forget_counts();
  struct Plan {
    std::string function;  // empty: any
    std::uint64_t remaining = 0;
    CUresult result = CUDA_SUCCESS;
  };
  std::optional<CUresult> intercept(std::string_view function);
  std::optional<CUresult> due(std::string_view function);  // REQUIRES mutex_

  const std::shared_ptr<const Driver> inner_;
  std::shared_ptr<const Driver> decorated_;

  mutable std::mutex mutex_;  // protects the members below; leaf lock
  std::vector<Plan> plans_;
  std::unordered_map<std::string, CUresult> always_;
  std::unordered_map<std::string, std::uint64_t> counts_;
  std::uint64_t total_ = 0;
  bool logging_ = false;
  std::vector<std::string> log_;
  std::shared_ptr<const std::function<void(std::string_view)>> hook_;
};

}  // namespace vmem::gpu
