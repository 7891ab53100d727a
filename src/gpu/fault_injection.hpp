// A driver that fails on demand: it passes every call to another driver, counts it, and can fail the n-th call, of any
// function or of one, with a chosen result, without passing it on. For tests of what happens when the driver fails.
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

// The functions of a driver table have nowhere to keep a this pointer, so one injector at a time is in force in a
// process: the latest made that still lives. Thread-safe: any thread may call through the driver while another changes
// what fails. The injector must outlive every call through its driver.
class FaultInjector {
 public:
  explicit FaultInjector(std::shared_ptr<const Driver> inner);
  ~FaultInjector();
  FaultInjector(const FaultInjector&) = delete;
  FaultInjector& operator=(const FaultInjector&) = delete;

  // The driver to hand to the code under test. Functions that the inner driver lacks are null here too.
  std::shared_ptr<const Driver> driver() const { return decorated_; }

  // Names are the base names of the table ("cuMemMap"). `n` counts from 1, from now on; each plan fires once.
  void fail_nth(std::uint64_t n, CUresult result);
  void fail_nth(std::string_view function, std::uint64_t n, CUresult result);
  // Fails every call of `function` from now on; CUDA_SUCCESS ends that.
  void fail_always(std::string_view function, CUresult result);
  // Forgets all plans; counts and log stay.
  void clear_plans();

  std::uint64_t calls() const;
  std::uint64_t calls(std::string_view function) const;
  // The names of the calls from `start_log` on, in the order in which they began.
  void start_log();
  std::vector<std::string> log() const;

  // Called before each call, outside any lock: lets a test stop a thread inside the driver.
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

  mutable std::mutex mutex_;  // protects what follows; leaf
  std::vector<Plan> plans_;
  std::unordered_map<std::string, CUresult> always_;
  std::unordered_map<std::string, std::uint64_t> counts_;
  std::uint64_t total_ = 0;
  bool logging_ = false;
  std::vector<std::string> log_;
  std::shared_ptr<const std::function<void(std::string_view)>> hook_;
};

}  // namespace vmem::gpu
