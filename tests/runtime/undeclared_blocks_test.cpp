// What is freed by programs that do not call vmem, and allocated again.
#include <gtest/gtest.h>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST(UndeclaredBlocks, OfEverySizeServeTheNextOfThatSize) {
  EmulatedGpu gpu("devices=1,hbm=2GiB,host=1GiB");
  Options options;
  options.space_bytes = 8192 * kMiB;
  options.devices = {0};
  options.hbm_bytes = 1024 * kMiB;
  options.host_bytes = 512 * kMiB;
  auto made = Runtime::create(options, gpu.driver());
  ASSERT_TRUE(made) << made.error().message;
  Runtime& runtime = **made;
  for (std::size_t bytes = 2 * kMiB; bytes < 200 * kMiB; bytes += kMiB) {
    auto first = runtime.allocate_undeclared(bytes, 0, nullptr);
    ASSERT_TRUE(first) << first.error().message;
    ASSERT_TRUE(runtime.free_undeclared(*first, nullptr));
    const std::uint64_t cached = runtime.cached_bytes(0);
    auto second = runtime.allocate_undeclared(bytes, 0, nullptr);
    ASSERT_TRUE(second) << second.error().message;
    EXPECT_EQ(*second, *first) << bytes;
    ASSERT_TRUE(runtime.free_undeclared(*second, nullptr));
    EXPECT_EQ(runtime.cached_bytes(0), cached) << bytes;
    ASSERT_TRUE(runtime.empty_cache());
  }
  EXPECT_TRUE(runtime.shut_down());
}

}  // namespace
}  // namespace vmem::test
