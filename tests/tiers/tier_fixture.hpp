// The emulated driver with a test-specific machine, and a context.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "gpu/fault_injection.hpp"
#include "gpu/handles.hpp"

namespace vmem::tiers {

// One machine per process: the driver reads its configuration once, and CTest runs every test in a
// process of its own.
struct TierMachine {
  explicit TierMachine(const char* machine) {
    static const std::string first = machine;
    if (first != machine)
      throw std::runtime_error("needs the machine " + std::string(machine) + ", and this process has " + first +
                               ": run each test in a process of its own, by ctest or --gtest_filter");
    ::setenv("VMEM_EMU", machine, 1);
    driver = *gpu::Driver::load("emulated");
    context = *gpu::PrimaryContext::retain(driver, 0);
    EXPECT_EQ((*driver)->cuCtxSetCurrent(context.context()), CUDA_SUCCESS);
  }
  // A driver that fails the n-th call of a function.
  std::shared_ptr<const gpu::Driver> failing(const char* call, std::uint64_t n) {
    injector = std::make_unique<gpu::FaultInjector>(driver);
    injector->fail_nth(call, n, CUDA_ERROR_UNKNOWN);
    return injector->driver();
  }
  std::shared_ptr<const gpu::Driver> driver;
  gpu::PrimaryContext context;
  std::unique_ptr<gpu::FaultInjector> injector;
};

}  // namespace vmem::tiers
