// Memory freed by programs that do not call vmem, and allocated again.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <latch>
#include <memory>
#include <utility>

#include "gpu/fault_injection.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct UndeclaredBlocks : ::testing::Test {
  EmulatedGpu gpu{"devices=1,hbm=2GiB,host=1GiB"};
  std::unique_ptr<Runtime> runtime;

  void SetUp() override {
    Options options;
    options.space_bytes = 8192 * kMiB;
    options.devices = {0};
    options.hbm_bytes = 1024 * kMiB;
    options.host_bytes = 512 * kMiB;
    auto made = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
  }
  void TearDown() override {
    if (!runtime) return;
    EXPECT_TRUE(runtime->shut_down());
  }
};

TEST_F(UndeclaredBlocks, OfEverySizeServeTheNextOfThatSize) {
  for (std::size_t bytes = 2 * kMiB; bytes < 200 * kMiB; bytes += kMiB) {
    auto first = runtime->blocks().allocate(bytes, 0, nullptr);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(runtime->blocks().free(*first, nullptr));
    const std::uint64_t cached = runtime->blocks().cached_bytes(0);
    auto second = runtime->blocks().allocate(bytes, 0, nullptr);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(*second, *first) << bytes;
    ASSERT_TRUE(runtime->blocks().free(*second, nullptr));
    EXPECT_EQ(runtime->blocks().cached_bytes(0), cached) << bytes;
    ASSERT_TRUE(runtime->blocks().empty_cache());
  }
}

// Frees a small block that another stream uses while it is acquired, which is refused. Then frees
// it on a third stream, which must still wait for the other stream.
TEST_F(UndeclaredBlocks, AFreeThatWasRefusedStillWaitsForOtherStreams) {
  std::array<CUstream, 3> streams{};
  for (CUstream& stream : streams) ASSERT_EQ(gpu.cu().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto [own, other, third] = streams;
  const auto block = runtime->blocks().allocate(1024, 0, own);
  ASSERT_TRUE(block) << block.error().message;
  std::latch gate(1);
  const auto wait = [](void* latch) { static_cast<std::latch*>(latch)->wait(); };
  ASSERT_EQ(gpu.cu().cuLaunchHostFunc(other, wait, &gate), CUDA_SUCCESS);
  EXPECT_TRUE(runtime->blocks().record_stream(*block, other));
  const vmem_range range{*block, 1024, VMEM_READ_WRITE, 0};
  EXPECT_TRUE(runtime->hit_path().acquire({&range, 1}, own));
  const auto refused = runtime->blocks().free(*block, own);
  EXPECT_TRUE(!refused && refused.error().status == VMEM_ERROR_IN_USE);
  EXPECT_TRUE(runtime->hit_path().release({&range, 1}, own));
  EXPECT_TRUE(runtime->blocks().free(*block, third));
  EXPECT_EQ(gpu.cu().cuStreamQuery(third), CUDA_ERROR_NOT_READY);
  gate.count_down();
  for (CUstream stream : streams) {
    EXPECT_EQ(gpu.cu().cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_TRUE(runtime->close_stream(stream));
    EXPECT_EQ(gpu.cu().cuStreamDestroy(stream), CUDA_SUCCESS);
  }
}

// A free makes its stream wait for the other streams, with two calls: the message names the one
// that failed.
TEST_F(UndeclaredBlocks, AFreeSaysWhichDriverCallFailed) {
  gpu::FaultInjector faults(gpu.driver());
  EXPECT_TRUE(runtime->shut_down());
  Options options;
  options.devices = {0};
  options.hbm_bytes = options.host_bytes = 128 * kMiB;
  options.space_bytes = 1024 * kMiB;
  auto made = Runtime::create(options, faults.driver());
  ASSERT_TRUE(made) << made.error().message;
  runtime = std::move(*made);
  CUstream other = gpu.create_stream(0);
  for (const char* const call : {"cuEventRecord", "cuStreamWaitEvent"}) {
    const auto block = runtime->blocks().allocate(1024, 0, nullptr);
    ASSERT_TRUE(block) << block.error().message;
    ASSERT_TRUE(runtime->blocks().record_stream(*block, other));
    faults.fail_always(call, CUDA_ERROR_NOT_SUPPORTED);
    const auto failed = runtime->blocks().free(*block, nullptr);
    faults.clear_plans();
    ASSERT_FALSE(failed) << call;
    EXPECT_NE(failed.error().message.find(call), std::string::npos) << failed.error().message;
    ASSERT_TRUE(runtime->blocks().free(*block, nullptr));
  }
  EXPECT_TRUE(runtime->shut_down());
  runtime.reset();
}

TEST_F(UndeclaredBlocks, OfSizesThatNothingCanHoldAreRefused) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB, SIZE_MAX / 2, std::size_t{8193} * kMiB}) {
    const auto made = runtime->blocks().allocate(bytes, 0, nullptr);
    ASSERT_FALSE(made) << bytes;
    EXPECT_EQ(made.error().status, VMEM_ERROR_ADDRESS_SPACE) << made.error().message;
  }
}

}  // namespace
}  // namespace vmem::test
