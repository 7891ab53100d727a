// A launch that lacks host memory for its holds.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "runtime/emulated_gpu.hpp"
#include "runtime/failing_allocations.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::LaunchHolds;
using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct LaunchFailure : ::testing::Test {
  EmulatedGpu gpu{"devices=1,hbm=512MiB,host=1GiB"};
  std::unique_ptr<Runtime> runtime;
  CUstream stream = nullptr;

  void SetUp() override {
    Options options;
    options.space_bytes = 1024 * kMiB;
    options.devices = {0};
    options.hbm_bytes = 64 * kMiB;
    options.host_bytes = 64 * kMiB;
    auto made = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
    gpu.make_current(0);
    stream = gpu.create_stream(0);
  }
  void TearDown() override {
    EXPECT_TRUE(runtime->close_stream(stream));
    EXPECT_TRUE(runtime->shut_down());
  }
  std::uintptr_t allocate() {
    auto made = runtime->allocations().allocate(4 * kMiB, 0, stream);
    EXPECT_TRUE(made) << made.error().message;
    return made ? reinterpret_cast<std::uintptr_t>(*made) : 0;
  }
};

// From its n-th allocation on, for each n until it needs no more. What is held cannot be freed.
TEST_F(LaunchFailure, HoldsNothingAfterwards) {
  std::uint32_t failed = 0;
  for (std::uint32_t allowed = 0;; ++allowed) {
    ASSERT_LT(allowed, 100u);
    const std::array<std::uintptr_t, 3> named{allocate(), allocate(), allocate()};
    LaunchHolds first;  // brings them in, so that the next launch asks no other thread
    ASSERT_TRUE(runtime->launches().begin(named, stream, false, first));
    ASSERT_TRUE(runtime->launches().end(first));
    gpu.synchronize(stream);

    LaunchHolds holds;
    holds.hold_separately = true;
    bool begun = false;
    FailingAllocations::arm_from(1, allowed);
    try {
      begun = runtime->launches().begin(named, stream, false, holds).has_value();
    } catch (const std::bad_alloc&) {
      ++failed;
    }
    FailingAllocations::disarm();
    if (begun) runtime->launches().abandon(holds);
    for (const std::uintptr_t each : named) {
      const auto freed = runtime->allocations().free(reinterpret_cast<void*>(each), stream);
      EXPECT_TRUE(freed) << allowed << " allocations: " << freed.error().message;
    }
    if (begun || HasFailure()) break;
  }
  EXPECT_GE(failed, 3u) << "the list of holds grows three times";
}

}  // namespace
}  // namespace vmem::test
