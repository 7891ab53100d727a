// The driver fails any one call of a short program, at every point of it. Whatever the program was doing then is refused with a status
// or done all the same; what it had is intact, nothing hangs, and nothing is left in the driver.
#include <gtest/gtest.h>

#include <cstring>

#include "base/log.hpp"
#include "gpu/fault_injection.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Options small_machine() {
  Options options;
  options.space_bytes = 4096 * kMiB;
  options.hbm_bytes = 32 * kMiB;
  options.host_bytes = 64 * kMiB;
  options.devices = {0};
  options.acquire_wait_us = 1000;
  return options;
}

// A program over a working set of twice the HBM, which goes on whatever is refused. Where a write was refused, the bytes are not
// known any more.
class Program {
 public:
  Program(runtime::Runtime& runtime, CUstream stream) : runtime_(runtime), stream_(stream) {}

  void run() {
    auto bystander = runtime_.allocate(3 * kMiB, 0, stream_);
    if (bystander) known_ = fill(*bystander, 3 * kMiB, 9);
    auto memory = runtime_.allocate(56 * kMiB, 0, stream_);
    auto small = runtime_.allocate(3000, 0, stream_);
    if (memory) {
      auto* base = static_cast<std::byte*>(*memory);
      (void)fill(base, 56 * kMiB, 1);
      for (std::size_t at = 0; at < 56 * kMiB; at += 8 * kMiB) use(base + at, 8 * kMiB);
      (void)runtime_.prefetch(base, 8 * kMiB);
      (void)runtime_.advise(base, 4 * kMiB, VMEM_ADVISE_EVICT);
      std::byte found[100];
      if (auto read = runtime_.read(found, base + 20 * kMiB, sizeof found); !read) note(read);
    }
    if (small) use(*small, 3000);
    expect_intact(bystander ? *bystander : nullptr);
    for (const auto& each : {memory, small, bystander}) {
      if (each) free_at_last(*each);
    }
  }
  bool lost() const { return lost_; }

 private:
  bool fill(void* memory, std::size_t bytes, int value) { return note(runtime_.fill(memory, value, bytes, stream_)); }
  void use(void* memory, std::size_t bytes) {
    const vmem_range range{memory, bytes, VMEM_READ_WRITE, 0};
    if (!note(runtime_.acquire({&range, 1}, stream_))) return;
    EXPECT_TRUE(note(runtime_.release({&range, 1}, stream_)) || lost_) << "a release does its own work whatever the driver says";
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
    // One failure fires once, so a second try tells.
    if (!runtime_.read(found, bystander, sizeof found) && !note(runtime_.read(found, bystander, sizeof found))) return;
    for (const std::byte byte : found) ASSERT_EQ(byte, std::byte{9}) << "a bystander was harmed";
  }
  void free_at_last(void* memory) {
    const Status freed = runtime_.free(memory, stream_);
    if (freed) return;
    EXPECT_TRUE(note(runtime_.free(memory, stream_)) || lost_) << freed.error().message;
  }

  runtime::Runtime& runtime_;
  CUstream stream_;
  bool known_ = false;
  bool lost_ = false;
};

class NthFailure : public ::testing::TestWithParam<CUresult> {
 protected:
  // Calls made in all; the n-th failed.
  std::uint64_t run_failing(std::uint64_t n) {
    const EmulatedGpu gpu("devices=1,hbm=64MiB,host=256MiB");
    gpu::FaultInjector faults(gpu.driver());
    if (n != 0) faults.fail_nth(n, GetParam());
    CUstream stream = const_cast<EmulatedGpu&>(gpu).create_stream(0);
    auto runtime = runtime::Runtime::create(small_machine(), faults.driver());
    if (!runtime) {
      EXPECT_NE(runtime.error().status, VMEM_ERROR_INTERNAL);
      EXPECT_FALSE(runtime.error().message.empty());
      return faults.calls();
    }
    Program program(**runtime, stream);
    program.run();
    if (!program.lost()) expect_empty(**runtime);
    EXPECT_TRUE((*runtime)->close_stream(stream) || (*runtime)->close_stream(stream) || program.lost());
    EXPECT_TRUE((*runtime)->shut_down() || (*runtime)->shut_down());
    runtime->reset();
    return faults.calls();
  }

  // The slabs of small allocations stay until the end.
  static void expect_empty(runtime::Runtime& runtime) {
    if (!runtime.quiesce()) return;
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
  const std::uint64_t calls = run_failing(0);
  ASSERT_FALSE(HasFailure()) << "without a failure";
  ASSERT_GT(calls, 100u);
  // The last calls are the mover's polls, whose number varies.
  for (std::uint64_t n = 1; n <= calls; n += n < 300 ? 1 : 7) {
    run_failing(n);
    ASSERT_FALSE(HasFailure()) << "with call " << n << " of " << calls << " failing";
    ASSERT_EQ(configure_emulated("devices=1"), "") << "something is left with call " << n << " of " << calls << " failing";
  }
}

INSTANTIATE_TEST_SUITE_P(Results, NthFailure, ::testing::Values(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN),
                         [](const auto& instance) { return instance.param == CUDA_ERROR_UNKNOWN ? "Unknown" : "OutOfMemory"; });

}  // namespace
}  // namespace vmem::test
