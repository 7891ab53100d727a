#include "tiers/frame_pool.hpp"

#include <gtest/gtest.h>

#include "tiers/tier_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct FramePoolTest : ::testing::Test {
  TierMachine machine{"devices=1,hbm=64MiB,host=64MiB"};
  FramePool pool_of(std::uint64_t budget) {
    FramePool::Config config;
    config.driver = machine.driver;
    config.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    config.accessors = {config.location};
    config.budget_bytes = budget;
    config.name = "HBM";
    return FramePool(std::move(config));
  }
};

TEST_F(FramePoolTest, GivesFramesUpToItsBudgetAndRecyclesThem) {
  FramePool pool = pool_of(8 * kMiB);
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(**pool.take(2 * kMiB));
  EXPECT_FALSE(pool.take(2 * kMiB)->has_value());
  EXPECT_EQ(pool.used_bytes(), 8 * kMiB);
  pool.give_back(taken[2], 0, nullptr);
  EXPECT_EQ(**pool.take(2 * kMiB), taken[2]);
  EXPECT_EQ(pool.frames_created(), 4u);
  for (const auto id : taken) pool.give_back(id, 0, nullptr);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

TEST_F(FramePoolTest, FramesWithoutAnOwnerGoFirstThenTheLongestFree) {
  FramePool pool = pool_of(6 * kMiB);
  const auto a = **pool.take(2 * kMiB), b = **pool.take(2 * kMiB), c = **pool.take(2 * kMiB);
  int owner = 0;
  pool.give_back(a, 0, &owner);
  pool.give_back(b, 0, &owner);
  pool.give_back(c, 0, nullptr);
  EXPECT_EQ(**pool.take(2 * kMiB), c);
  EXPECT_EQ(**pool.take(2 * kMiB), a);
  pool.retake(b);
  EXPECT_FALSE(pool.take(2 * kMiB)->has_value());
}

TEST_F(FramePoolTest, RoomForOtherSizesIsMadeFromFreeFramesThatNoTransferReads) {
  FramePool pool = pool_of(8 * kMiB);
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(**pool.take(2 * kMiB));
  pool.give_back(taken[0], 77, nullptr);  // still read by transfer 77
  for (int i = 1; i < 4; ++i) pool.give_back(taken[std::size_t(i)], 0, nullptr);
  const auto busy = [](std::uint64_t transfer) { return transfer == 77; };
  const auto forget = [](void*) {};
  EXPECT_FALSE(*pool.make_room(8 * kMiB, busy, forget));
  EXPECT_EQ(pool.created_bytes(), 2 * kMiB);
  EXPECT_TRUE(*pool.make_room(8 * kMiB, [](std::uint64_t) { return false; }, forget));
  EXPECT_TRUE(pool.take(8 * kMiB)->has_value());
}

TEST_F(FramePoolTest, ADriverWithLessMemoryThanTheBudgetShrinksTheBudget) {
  FramePool pool = pool_of(256 * kMiB);
  std::uint64_t got = 0;
  while (pool.take(2 * kMiB)->has_value()) got += 2 * kMiB;
  EXPECT_EQ(got, 64 * kMiB);
  EXPECT_EQ(pool.budget_bytes(), 64 * kMiB);
}

TEST_F(FramePoolTest, EveryDriverFailureWhileCreatingLeavesThePoolAsItWas) {
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    auto faulty = machine.failing(call, 1);
    FramePool::Config config;
    config.driver = faulty;
    config.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    config.accessors = {config.location};
    config.budget_bytes = 64 * kMiB;
    FramePool pool(std::move(config));
    EXPECT_FALSE(pool.take(2 * kMiB).has_value());
    EXPECT_EQ(pool.created_bytes(), 0u);
    for (int i = 0; i < 32; ++i) EXPECT_TRUE(pool.take(2 * kMiB)->has_value()) << "nothing of the budget is lost";
  }
}

}  // namespace
}  // namespace vmem::tiers
