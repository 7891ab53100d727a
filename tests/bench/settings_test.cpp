#include "bench/settings.hpp"

#include <gtest/gtest.h>

#include "base/sizes.hpp"
#include "bench/gpu.hpp"
#include "bench/scenarios/matmul.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class SizesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = Gpu::open("emulated", 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
  }
  // The error message, or "" if the sizes are accepted.
  std::string refusal() const {
    const auto sizes = plan_sizes(settings_, *gpu_, 4);
    if (sizes) return {};
    EXPECT_EQ(sizes.error().status, VMEM_ERROR_INVALID_OPTION);
    return sizes.error().message;
  }

  Settings settings_;
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(SizesTest, RatioAndBudgetGiveTheWorkingSet) {
  settings_.hbm_bytes = 64 * kMiB;
  settings_.ratio = 2.5;
  const auto sizes = plan_sizes(settings_, *gpu_, 4);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->working_set_bytes, 160 * kMiB);
  EXPECT_GE(sizes->host_bytes, sizes->working_set_bytes);
}

TEST_F(SizesTest, WorkingSetAndRatioGiveTheBudget) {
  settings_.working_set_bytes = 256 * kMiB;
  const auto sizes = plan_sizes(settings_, *gpu_, 4);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->hbm_bytes, 64 * kMiB);
}

TEST_F(SizesTest, MoreHbmThanTheDeviceHasIsRefusedWithBothSizes) {
  settings_.hbm_bytes = 2 * gpu_->total_bytes();
  const std::string message = refusal();
  EXPECT_NE(message.find(format_bytes(2 * gpu_->total_bytes())), std::string::npos) << message;
  EXPECT_NE(message.find(format_bytes(gpu_->total_bytes())), std::string::npos) << message;
  EXPECT_NE(message.find("lower --hbm"), std::string::npos) << message;
}

TEST_F(SizesTest, WorkingSetAboveHbmPlusHostIsRefused) {
  settings_.hbm_bytes = 64 * kMiB;
  settings_.host_bytes = 64 * kMiB;
  settings_.working_set_bytes = 256 * kMiB;
  const std::string message = refusal();
  EXPECT_NE(message.find("256 MiB"), std::string::npos) << message;
  EXPECT_NE(message.find("raise --host"), std::string::npos) << message;
}

TEST_F(SizesTest, FilesHoldWhatHbmAndHostDoNot) {
  settings_.hbm_bytes = 64 * kMiB;
  settings_.host_bytes = 64 * kMiB;
  settings_.runtime_options = {{"nvme", ".:512MiB"}};
  const auto sizes = plan_sizes(settings_, *gpu_, 4);
  ASSERT_TRUE(sizes) << sizes.error().message;
  EXPECT_EQ(sizes->working_set_bytes, 512 * kMiB) << "four times of both";
  settings_.runtime_options = {{"nvme", ".:256MiB"}};
  EXPECT_NE(refusal().find("raise --host, --peers or --nvme"), std::string::npos);
}

TEST_F(SizesTest, OptionsThatNobodySetAreNotBlamed) {
  settings_.hbm_bytes = 64 * kMiB;
  settings_.host_bytes = 64 * kMiB;
  const std::string message = refusal();
  EXPECT_NE(message.find("HBM 64 MiB, host memory 64 MiB hold 128 MiB together"), std::string::npos) << message;
  EXPECT_EQ(message.find("--remote"), std::string::npos) << message;
}

TEST_F(SizesTest, MoreHostMemoryThanThereIsIsRefused) {
  settings_.host_bytes = std::uint64_t{1} << 50;
  EXPECT_NE(refusal().find("lower --host"), std::string::npos);
}

TEST_F(SizesTest, ContradictingSizesAreRefused) {
  settings_.hbm_bytes = 64 * kMiB;
  settings_.working_set_bytes = 256 * kMiB;
  settings_.ratio = 3;
  EXPECT_NE(refusal().find("contradict"), std::string::npos);
}

TEST_F(SizesTest, AbsurdRatiosAreRefused) {
  for (const double ratio : {0.0, -1.0, 1e9}) {
    settings_.ratio = ratio;
    EXPECT_NE(refusal(), "") << ratio;
  }
}

TEST(RuntimeOptions, AreFoundInTheEnvironmentUnlessGiven) {
  Settings settings;
  ::setenv("VMEM_REMOTE_CHANNELS", "3", 1);  // without a node, which other checks refuse
  ::setenv("VMEM_PEERS", "2:1GiB", 1);
  settings.runtime_options = {{"peers", "1:1GiB"}};
  const auto options = options_named(settings, {"remote_channels", "peers"});
  const auto only_peers = options_named(settings, {"peers"});
  ::unsetenv("VMEM_REMOTE_CHANNELS");
  ::unsetenv("VMEM_PEERS");
  ASSERT_TRUE(options && only_peers);
  EXPECT_EQ(options->remote_channels, 3u);
  EXPECT_EQ(options->peers.front().device, 1);
  EXPECT_FALSE(only_peers->remote_channels);
}

TEST(Tiling, ThreeMatricesFitAndTilesDivideThem) {
  for (const std::uint64_t bytes : {12 * kMiB, 36 * kMiB, 1024 * kMiB, 12 * 1024 * kMiB}) {
    const Tiling tiling = choose_tiling(bytes);
    EXPECT_LE(3 * tiling.matrix_bytes(), bytes);
    EXPECT_GE(3 * tiling.matrix_bytes(), bytes / 3) << "most of the working set is left unused";
    EXPECT_EQ(tiling.edge % 128, 0u);
  }
  EXPECT_EQ(choose_tiling(12 * 1024 * kMiB).n(), 32768u);
}

TEST(Tiling, EntriesOfATileAreContiguous) {
  const Tiling tiling{128, 3};
  EXPECT_EQ(tiling.entry_offset(0, 127) + 4, tiling.entry_offset(1, 0));
  EXPECT_EQ(tiling.entry_offset(0, 128), tiling.tile_bytes());
  EXPECT_EQ(tiling.entry_offset(128, 0), 3 * tiling.tile_bytes());
}

}  // namespace
}  // namespace vmem::bench
