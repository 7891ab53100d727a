// Launches that use memory which stays in host memory, as by advice or because that proved faster.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::LaunchHolds;
using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kBytes = 8 * kMiB;

struct InPlaceLaunches : ::testing::Test {
  EmulatedGpu gpu{"devices=1,hbm=512MiB,host=1GiB"};
  std::unique_ptr<Runtime> runtime;
  CUstream stream = nullptr;
  std::uint32_t* block = nullptr;

  void SetUp() override {
    Options options;
    options.space_bytes = 8192 * kMiB;
    options.hbm_bytes = 64 * kMiB;
    options.host_bytes = 512 * kMiB;
    options.share_pages = false;
    auto made = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
    gpu.make_current(0);
    stream = gpu.create_stream(0);
    auto allocated = runtime->blocks().allocate(kBytes, 0, stream);
    ASSERT_TRUE(allocated) << allocated.error().message;
    block = static_cast<std::uint32_t*>(*allocated);
    launch([this] { *block = 5; });
    gpu.synchronize(stream);
    ASSERT_TRUE(runtime->requests().advise(block, kBytes, VMEM_ADVISE_IN_PLACE));
    // Pages that are in use when they are asked to leave stay.
    for (int i = 0; i < 100 && in_hbm() != 0; ++i) {
      ASSERT_TRUE(runtime->requests().advise(block, kBytes, VMEM_ADVISE_EVICT));
      ASSERT_TRUE(runtime->requests().quiesce());
    }
    launch([this] { *block += 1; });
    gpu.synchronize(stream);
    ASSERT_EQ(in_hbm(), 0u);
  }
  void TearDown() override {
    gpu.synchronize(stream);
    EXPECT_TRUE(runtime->close_stream(stream));
    EXPECT_TRUE(runtime->shut_down());
  }

  std::vector<std::uintptr_t> named() const { return {reinterpret_cast<std::uintptr_t>(block)}; }
  void launch(const std::function<void()>& body, bool needs_hbm = false) {
    LaunchHolds holds;
    holds.needs_hbm = needs_hbm;
    const auto ready = runtime->launches().begin(named(), stream, false, holds);
    ASSERT_TRUE(ready) << ready.error().message;
    EXPECT_TRUE(!needs_hbm || all_in_hbm(holds));
    ASSERT_EQ(gpu.launch(stream, 0, body), CUDA_SUCCESS);
    ASSERT_TRUE(runtime->launches().end(holds));
  }
  std::size_t in_hbm() {
    vmem_pointer_info info{};
    EXPECT_TRUE(runtime->requests().query(block, info));
    return info.bytes_hbm;
  }
  std::uint64_t misses() {
    vmem_statistics all{};
    all.struct_bytes = sizeof all;
    EXPECT_TRUE(runtime->statistics(all));
    return all.acquire_misses;
  }
  void expect_value(std::uint32_t value) {
    std::uint32_t found = 0;
    launch([this, &found] { found = *block; });
    gpu.synchronize(stream);
    EXPECT_EQ(found, value);
  }
};

TEST_F(InPlaceLaunches, DoNotAskTheMover) {
  const std::uint64_t before = misses();
  for (int i = 0; i < 5; ++i) launch([this] { *block += 1; });
  EXPECT_EQ(misses(), before);
  expect_value(11);
  EXPECT_EQ(in_hbm(), 0u);
}

TEST_F(InPlaceLaunches, ThatNeedHbmGetTheBlockThere) {
  launch([this] { *block += 1; }, true);
  EXPECT_EQ(in_hbm(), kBytes);
  expect_value(7);
}

TEST_F(InPlaceLaunches, TheDriverIsToldOfMemoryInHbm) {
  LaunchHolds holds;
  holds.needs_hbm = true;
  ASSERT_TRUE(runtime->launches().begin_recording(named(), stream, holds));
  EXPECT_TRUE(all_in_hbm(holds));
  runtime->launches().abandon(holds);
  expect_value(6);
}

}  // namespace
}  // namespace vmem::test
