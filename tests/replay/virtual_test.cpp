// The virtual GPU and host memory: when work ends, and which contents a slot has.
#include <gtest/gtest.h>

#include <array>

#include "replay/virtual_gpu.hpp"
#include "replay/virtual_host.hpp"

namespace vmem::replay {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{32} << 20;
constexpr std::uint64_t kPageNs = 1'000'000;  // of the rate below

struct Virtual : ::testing::Test {
  VirtualGpu gpu{{.hbm_bytes = std::uint64_t{1} << 30,
                  .costs = {.map = 0,
                            .set_access = 10,
                            .unmap = 0,
                            .set_access_beside_stores = 70,
                            .create = 0,
                            .release = 0,
                            .event = 0},
                  .link = {.in_bytes_per_s = kPage * 1000,
                           .out_bytes_per_s = kPage * 1000,
                           .both = 0.5,
                           .start_ns = 0,
                           .pause_ns = 0}}};
  CUstream stream = gpu.create_stream(0);
  std::uint64_t copied(VirtualGpu::Direction direction, CUevent after = nullptr) {
    return gpu.time_of(gpu.copy(0, direction, kPage, {&after, 1}));
  }
};

TEST_F(Virtual, WorkOfAStreamRunsInOrderAndNotBeforeItIsQueued) {
  EXPECT_EQ(gpu.run(stream, 100), gpu.now_ns() + 100);
  EXPECT_EQ(gpu.run(stream, 50), gpu.now_ns() + 150);
  gpu.set_now(10'000);
  EXPECT_EQ(gpu.run(stream, 50), 10'050u);
}

TEST_F(Virtual, CopiesOfOneDirectionFollowEachOther) {
  const std::uint64_t now = gpu.now_ns();
  EXPECT_EQ(copied(VirtualGpu::Direction::in), now + kPageNs);
  EXPECT_EQ(copied(VirtualGpu::Direction::in), now + 2 * kPageNs);
  EXPECT_EQ(gpu.busy_ns(0, VirtualGpu::Direction::in), 2 * kPageNs);
  EXPECT_EQ(gpu.busy_ns(0, VirtualGpu::Direction::out), 0u);
}

TEST_F(Virtual, BothDirectionsSlowEachOtherDown) {
  const std::uint64_t now = gpu.now_ns();
  EXPECT_EQ(copied(VirtualGpu::Direction::in), now + kPageNs);
  EXPECT_EQ(copied(VirtualGpu::Direction::out), now + kPageNs + kPageNs / 2) << "half of it at half the rate";
}

TEST_F(Virtual, ACopyWaitsForItsEvents) {
  const auto& driver = *gpu.driver();
  CUevent event = nullptr;
  ASSERT_EQ(driver->cuEventCreate(&event, 0), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
  const std::uint64_t end = gpu.run(stream, 5 * kPageNs);
  ASSERT_EQ(driver->cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(copied(VirtualGpu::Direction::out, event), end + kPageNs);
  gpu.set_now(end);
  EXPECT_EQ(driver->cuEventQuery(event), CUDA_SUCCESS);
}

TEST_F(Virtual, SetAccessTakesLongerWhilePagesAreCopiedOut) {
  const auto set_access_ns = [&] {
    const std::uint64_t before = gpu.now_ns();
    EXPECT_EQ((*gpu.driver())->cuMemSetAccess(0, kPage, nullptr, 0), CUDA_SUCCESS);
    return gpu.now_ns() - before;
  };
  EXPECT_EQ(set_access_ns(), 10u);
  (void)copied(VirtualGpu::Direction::in);
  EXPECT_EQ(set_access_ns(), 10u);
  gpu.set_now(copied(VirtualGpu::Direction::out) - 100);
  EXPECT_EQ(set_access_ns(), 70u);
  gpu.spend(100);
  EXPECT_EQ(set_access_ns(), 10u);
}

TEST_F(Virtual, AStorePausesAfterEachPiece) {
  constexpr std::uint64_t kPauseNs = 1'000;
  VirtualGpu pausing{{.hbm_bytes = kPage,
                      .link = {.in_bytes_per_s = kPage * 1000,
                               .out_bytes_per_s = kPage * 1000,
                               .start_ns = 0,
                               .pause_ns = kPauseNs,
                               .piece_bytes = kPage / 4}}};
  const std::uint64_t now = pausing.now_ns();
  EXPECT_EQ(pausing.time_of(pausing.copy(0, VirtualGpu::Direction::out, kPage, {})), now + kPageNs + 4 * kPauseNs);
}

TEST_F(Virtual, WhatTheDriverDoesNotHaveIsAnError) {
  std::size_t bytes = 0;
  EXPECT_EQ((*gpu.driver())->cuDeviceTotalMem(&bytes, 0), CUDA_ERROR_NOT_SUPPORTED);
}

struct VirtualHostMemory : Virtual {
  Contents contents;
  VirtualHost host{{.gpu = gpu, .contents = contents, .budget_bytes = 4 * kPage, .made_bytes_per_s = kPage * 1000}};
  tiers::SlotId slot() {
    for (;;) {
      const auto grant = host.allocate(kPage);
      if (grant->grant == tiers::Grant::granted) return grant->slot;
      EXPECT_EQ(grant->grant, tiers::Grant::later);
      gpu.spend(kPageNs);
    }
  }
  // What its completion says.
  bool moved(tiers::SlotId at, tiers::Direction direction, bool watches) {
    tiers::Transfer transfer{.page = {pagetable::Serial{1}, 16}, .slot = at, .bytes = kPage, .direction = direction};
    transfer.watch = watches && direction == tiers::Direction::load;
    transfer.if_changed = watches && direction == tiers::Direction::store;
    EXPECT_TRUE(host.submit({&transfer, 1}));
    std::vector<tiers::Completion> ended;
    while (ended.empty()) {
      gpu.spend(kPageNs);
      EXPECT_TRUE(host.poll(ended));
    }
    EXPECT_EQ(ended.front().id, transfer.id);
    return ended.front().changed;
  }
};

TEST_F(VirtualHostMemory, SlotsAreMadeInTheirTimeAndAreAsManyAsTheBudgetHas) {
  EXPECT_EQ(host.allocate(kPage)->grant, tiers::Grant::later);
  gpu.spend(kPageNs);
  EXPECT_EQ(host.allocate(kPage)->grant, tiers::Grant::granted);
  for (int i = 1; i < 4; ++i) (void)slot();
  EXPECT_EQ(host.allocate(kPage)->grant, tiers::Grant::full);
  host.release(2);
  EXPECT_EQ(host.allocate(kPage)->slot, 2u);
}

TEST_F(VirtualHostMemory, OnlyWhatWasWrittenIsCopiedOutAfterAWatchedLoad) {
  const tiers::SlotId at = slot();
  contents.write(16, 16);
  moved(at, tiers::Direction::store, false);
  moved(at, tiers::Direction::load, true);
  EXPECT_FALSE(moved(at, tiers::Direction::store, true));
  contents.write(20, 1);
  EXPECT_TRUE(moved(at, tiers::Direction::store, true));
  EXPECT_EQ(gpu.busy_ns(0, VirtualGpu::Direction::out), kPageNs + kPageNs / 16);
  EXPECT_EQ(host.wrong_loads(), 0u);
}

TEST_F(VirtualHostMemory, ALoadOfOldContentsIsCounted) {
  const tiers::SlotId at = slot();
  contents.write(16, 16);
  moved(at, tiers::Direction::store, false);
  contents.write(17, 1);
  moved(at, tiers::Direction::load, false);
  EXPECT_EQ(host.wrong_loads(), 1u);
}

}  // namespace
}  // namespace vmem::replay
