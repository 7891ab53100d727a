// What is freed by programs that do not call vmem, and allocated again.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

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
  void TearDown() override { EXPECT_TRUE(runtime->shut_down()); }
};

TEST_F(UndeclaredBlocks, OfEverySizeServeTheNextOfThatSize) {
  for (std::size_t bytes = 2 * kMiB; bytes < 200 * kMiB; bytes += kMiB) {
    auto first = runtime->allocate_undeclared(bytes, 0, nullptr);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(runtime->free_undeclared(*first, nullptr));
    const std::uint64_t cached = runtime->cached_bytes(0);
    auto second = runtime->allocate_undeclared(bytes, 0, nullptr);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(*second, *first) << bytes;
    ASSERT_TRUE(runtime->free_undeclared(*second, nullptr));
    EXPECT_EQ(runtime->cached_bytes(0), cached) << bytes;
    ASSERT_TRUE(runtime->empty_cache());
  }
}

TEST_F(UndeclaredBlocks, OfSizesThatNothingCanHoldAreRefused) {
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - kMiB, SIZE_MAX / 2, std::size_t{8193} * kMiB}) {
    const auto made = runtime->allocate_undeclared(bytes, 0, nullptr);
    ASSERT_FALSE(made) << bytes;
    EXPECT_EQ(made.error().status, VMEM_ERROR_ADDRESS_SPACE) << made.error().message;
  }
}

}  // namespace
}  // namespace vmem::test
