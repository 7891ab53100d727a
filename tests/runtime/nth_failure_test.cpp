// The driver fails one call of a short program, at every point of it in turn. The affected
// operation is refused with a status or succeeds; earlier data is intact, nothing hangs, and
// nothing is left in the driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include "base/log.hpp"
#include "gpu/fault_injection.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Calls of one function that fail; of functions with more calls, every second, third and so on.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kEach = 12;
#else
constexpr std::uint64_t kEach = 24;
#endif

Options small_machine() {
  Options options;
  options.space_bytes = 4096 * kMiB;
  options.hbm_bytes = 32 * kMiB;
  options.host_bytes = 64 * kMiB;
  options.page_bytes = 4 * kMiB;
  options.devices = {0};
  options.acquire_wait_us = 1000;
  return options;
}

// A program with a working set of twice the HBM that continues after refusals. After a refused
// write the bytes are unknown.
class Program {
 public:
  Program(runtime::Runtime& runtime, CUstream stream) : runtime_(runtime), stream_(stream) {}

  void run() {
    auto bystander = runtime_.allocations().allocate(3 * kMiB, 0, stream_);
    if (bystander) known_ = fill(*bystander, 3 * kMiB, 9);
    auto memory = runtime_.allocations().allocate(40 * kMiB, 0, stream_);
    auto small = runtime_.allocations().allocate(3000, 0, stream_);
    if (memory) {
      auto* base = static_cast<std::byte*>(*memory);
      (void)fill(base, 40 * kMiB, 1);
      for (std::size_t at = 0; at < 40 * kMiB; at += 8 * kMiB) use(base + at, 8 * kMiB);
      (void)runtime_.requests().prefetch(base, 8 * kMiB);
      (void)runtime_.requests().advise(base, 4 * kMiB, VMEM_ADVISE_EVICT);
      std::byte found[100];
      if (auto read = runtime_.copies().read(found, base + 21 * kMiB, sizeof found); !read) note(read);
    }
    if (small) use(*small, 3000);
    expect_intact(bystander ? *bystander : nullptr);
    for (const auto& each : {memory, small, bystander}) {
      if (each) free_at_last(*each);
    }
  }
  bool lost() const { return lost_; }

 private:
  bool fill(void* memory, std::size_t bytes, int value) {
    return note(runtime_.copies().fill(memory, value, 1, bytes, stream_));
  }
  void use(void* memory, std::size_t bytes) {
    const vmem_range range{memory, bytes, VMEM_READ_WRITE, 0};
    if (!note(runtime_.hit_path().acquire({&range, 1}, stream_))) return;
    EXPECT_TRUE(note(runtime_.hit_path().release({&range, 1}, stream_)) || lost_)
        << "a release does its own work whatever the driver says";
  }
  bool note(const Status& status) {
    if (status) return true;
    EXPECT_NE(status.error().status, VMEM_ERROR_INTERNAL) << status.error().message;
    EXPECT_FALSE(status.error().message.empty());
    lost_ = lost_ || status.error().status == VMEM_ERROR_DEVICE_LOST;
    return false;
  }
  void expect_intact(void* bystander) {
    std::byte found[64];
    if (bystander == nullptr || !known_ || lost_) return;
    // A failure fires once, so a second attempt must succeed.
    if (!runtime_.copies().read(found, bystander, sizeof found) &&
        !note(runtime_.copies().read(found, bystander, sizeof found)))
      return;
    for (const std::byte byte : found) ASSERT_EQ(byte, std::byte{9}) << "a bystander was harmed";
  }
  void free_at_last(void* memory) {
    const Status freed = runtime_.allocations().free(memory, stream_);
    if (freed) return;
    EXPECT_TRUE(note(runtime_.allocations().free(memory, stream_)) || lost_) << freed.error().message;
  }

  runtime::Runtime& runtime_;
  CUstream stream_;
  bool known_ = false;
  bool lost_ = false;
};

// Functions and their call counts in a program without failures. Functions that the mover polls
// have varying counts; only a few of their calls fail.
using Calls = std::map<std::string, std::uint64_t>;

class NthFailure : public ::testing::TestWithParam<CUresult> {
 protected:
  // The n-th call of the function fails; n = 0: none.
  Calls run_failing(const std::string& function, std::uint64_t n) {
    EmulatedGpu gpu("devices=1,hbm=64MiB,host=256MiB");
    gpu::FaultInjector faults(gpu.driver());
    faults.start_log();
    if (n != 0) faults.fail_nth(function, n, GetParam());
    CUstream stream = gpu.create_stream(0);
    if (auto runtime = runtime::Runtime::create(small_machine(), faults.driver())) {
      run_program(**runtime, stream);
      // Refused releases at the end would leave objects in the driver: TeardownFailure tests them.
      faults.clear_plans();
    } else {
      EXPECT_NE(runtime.error().status, VMEM_ERROR_INTERNAL);
      EXPECT_FALSE(runtime.error().message.empty());
    }
    Calls calls;
    for (const std::string& call : faults.log()) ++calls[call];
    return calls;
  }

 private:
  static void run_program(runtime::Runtime& runtime, CUstream stream) {
    Program program(runtime, stream);
    program.run();
    if (!program.lost()) expect_empty(runtime);
    EXPECT_TRUE(runtime.close_stream(stream) || runtime.close_stream(stream) || program.lost());
    EXPECT_TRUE(runtime.shut_down() || runtime.shut_down());
  }

  // The slabs of small allocations stay until the end.
  static void expect_empty(runtime::Runtime& runtime) {
    if (!runtime.requests().quiesce()) return;
    vmem_statistics stats{};
    ASSERT_TRUE(runtime.statistics(stats));
    EXPECT_EQ(stats.allocated_bytes, 0u);
    EXPECT_LE(stats.committed_bytes, 2 * kMiB);
    EXPECT_LE(stats.hbm_used_bytes, stats.committed_bytes);
    EXPECT_LE(stats.host_used_bytes, stats.committed_bytes);
  }
};

TEST_P(NthFailure, OfAnyCallIsRefusedOrSurvivedAndLeavesNothing) {
  log::set_level(log::Level::off);
  constexpr std::uint64_t kPolls = 20;
  const Calls calls = run_failing("", 0);
  ASSERT_FALSE(HasFailure()) << "without a failure";
  for (const auto& [function, count] : calls) {
    // A refused release leaves an object in the driver: TeardownFailure.
    if (function == "cuMemRelease") continue;
    const std::uint64_t last = function == "cuEventQuery" ? std::min(count, kPolls) : count;
    for (std::uint64_t n = 1; n <= last; n += 1 + last / kEach) {
      SCOPED_TRACE(function + " fails at call " + std::to_string(n) + " of " + std::to_string(count));
      run_failing(function, n);
      ASSERT_FALSE(HasFailure());
      ASSERT_EQ(configure_emulated("devices=1"), "") << "something is left in the driver";
    }
  }
}

// In its own process, whose driver keeps objects that it refused to release.
TEST(TeardownFailure, OfEveryCallThatGivesSomethingBackIsSurvived) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        log::set_level(log::Level::off);
        EmulatedGpu gpu("devices=1,hbm=64MiB,host=256MiB");
        gpu::FaultInjector faults(gpu.driver());
        CUstream stream = gpu.create_stream(0);
        {
          auto runtime = runtime::Runtime::create(small_machine(), faults.driver());
          Program(**runtime, stream).run();
          for (const char* function : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuStreamDestroy",
                                       "cuEventDestroy", "cuStreamSynchronize", "cuDevicePrimaryCtxRelease"}) {
            faults.fail_always(function, CUDA_ERROR_UNKNOWN);
          }
        }
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Results, NthFailure, ::testing::Values(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN),
                         [](const auto& instance) {
                           return instance.param == CUDA_ERROR_UNKNOWN ? "Unknown" : "OutOfMemory";
                         });

}  // namespace
}  // namespace vmem::test
