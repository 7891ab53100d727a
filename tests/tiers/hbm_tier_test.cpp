// HBM that is lent for pages of other nodes, on the emulated driver.
#include "tiers/hbm/hbm_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <thread>
#include <vector>

#include "tiers/hbm/hbm_space.hpp"
#include "tiers/tier_conformance.hpp"
#include "tiers/tier_fixture.hpp"

namespace vmem::tiers {
namespace {

using pagetable::kGranuleBytes;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class HbmUnderTest {
 public:
  HbmUnderTest() {
    HbmTier::Config config;
    config.driver = injector.driver();
    config.bytes = budget_bytes();
    config.slab_bytes = 8 * kMiB;
    config.on_ready = [this] {
      const std::lock_guard lock(mutex_);
      ++ready_;
      changed_.notify_all();
    };
    tier_ = *HbmTier::create(std::move(config));
    for (gpu::PinnedBuffer& memory : memories_) memory = *gpu::PinnedBuffer::create(machine_.driver, 16 * kMiB);
  }
  HbmTier& tier() { return *tier_; }
  static constexpr std::uint64_t budget_bytes() { return 20 * kMiB; }  // slabs of 8, 8 and 4 MiB
  void wait_until_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ != seen_; });
    seen_ = ready_;
  }
  void aim(Transfer& transfer, std::size_t i) { transfer.host = memories_[i].data(); }
  void fill(std::size_t i, unsigned char value) { std::memset(memories_[i].data(), value, memories_[i].bytes()); }
  bool holds(std::size_t i, unsigned char value, std::uint64_t bytes = kTierPage) {
    const auto* begin = reinterpret_cast<const unsigned char*>(memories_[i].data());
    return std::all_of(begin, begin + bytes, [&](unsigned char byte) { return byte == value; });
  }

  // For single tests.
  SlotId slot(std::uint64_t bytes = kTierPage) {
    for (;;) {
      const SlotGrant grant = *tier_->allocate(bytes);
      if (grant.grant == Grant::granted) return grant.slot;
      EXPECT_EQ(grant.grant, Grant::later);
      wait_until_ready();
    }
  }
  Completion carry_out(Direction direction, SlotId slot, std::size_t memory, std::uint64_t bytes = kTierPage) {
    Transfer transfer;
    transfer.slot = slot;
    transfer.host = memories_[memory].data();
    transfer.bytes = bytes;
    transfer.direction = direction;
    EXPECT_TRUE(tier_->submit({&transfer, 1}));
    std::vector<Completion> completions;
    while (completions.empty()) {
      EXPECT_TRUE(tier_->poll(completions));
      std::this_thread::yield();
    }
    EXPECT_EQ(completions.front().id, transfer.id);
    return completions.front();
  }
  void store(SlotId slot, unsigned char value, std::uint64_t bytes = kTierPage) {
    fill(0, value);
    EXPECT_EQ(carry_out(Direction::store, slot, 0, bytes).outcome, Outcome::done);
  }
  bool loads(SlotId slot, unsigned char value, std::uint64_t bytes = kTierPage) {
    fill(1, 0xee);
    return carry_out(Direction::load, slot, 1, bytes).outcome == Outcome::done && holds(1, value, bytes);
  }
  // Until the tier has so much of the GPU's memory.
  void wait_for_slabs(std::uint64_t bytes) {
    while (tier_->slab_bytes() != bytes) std::this_thread::yield();
  }
  std::uint64_t free_on_gpu() {
    std::size_t free = 0, total = 0;
    EXPECT_EQ((*machine_.driver)->cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }

 private:
  TierMachine machine_{"devices=1,hbm=64MiB,host=128MiB"};

 public:
  gpu::FaultInjector injector{machine_.driver};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0, seen_ = 0;
  gpu::PinnedBuffer memories_[2];
  std::unique_ptr<HbmTier> tier_;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Hbm, TierConformance, HbmUnderTest);

TEST(HbmTier, TheNextSlotFindsNothingOfWhatWasThere) {
  HbmUnderTest t;
  std::vector<SlotId> slots;
  for (std::uint64_t i = 0; i < t.budget_bytes() / kTierPage; ++i) slots.push_back(t.slot());
  t.store(slots[3], 0x5a);
  t.tier().release(slots[3]);
  EXPECT_TRUE(t.loads(t.slot(), 0));
}

TEST(HbmTier, APageFillsFreeGranulesThatLieApart) {
  HbmUnderTest t;
  std::vector<SlotId> slots;
  for (std::uint64_t i = 0; i < t.budget_bytes() / kTierPage; ++i) slots.push_back(t.slot());
  for (const std::size_t i : {1u, 3u, 6u, 8u}) t.tier().release(slots[i]);
  const SlotId large = t.slot(8 * kMiB);
  t.store(slots[2], 0x22);
  t.store(large, 0x77, 8 * kMiB);
  t.store(slots[7], 0x33);
  EXPECT_TRUE(t.loads(large, 0x77, 8 * kMiB));
  EXPECT_TRUE(t.loads(slots[2], 0x22));
  EXPECT_TRUE(t.loads(slots[7], 0x33));
}

TEST(HbmTier, MemoryGoesBackToTheGpuOnceItsPagesFitElsewhere) {
  HbmUnderTest t;
  const std::uint64_t free_before = t.free_on_gpu();
  std::vector<SlotId> slots;
  for (std::uint64_t i = 0; i < t.budget_bytes() / kTierPage; ++i) slots.push_back(t.slot());
  for (std::size_t i = 0; i < slots.size(); ++i) t.store(slots[i], static_cast<unsigned char>(i + 1));
  t.tier().set_limit(9 * kMiB);  // one slab of 8 MiB
  EXPECT_EQ(t.tier().usage().budget_bytes, 8 * kMiB);
  EXPECT_EQ(t.tier().allocate(kTierPage)->grant, Grant::full);
  for (const std::size_t i : {0u, 2u, 4u, 5u, 6u, 8u}) t.tier().release(slots[i]);
  t.wait_for_slabs(8 * kMiB);
  for (const std::size_t i : {1u, 3u, 7u, 9u}) EXPECT_TRUE(t.loads(slots[i], static_cast<unsigned char>(i + 1))) << i;
  while (t.free_on_gpu() != free_before + 12 * kMiB) std::this_thread::yield();
  EXPECT_EQ(t.tier().allocate(kTierPage)->grant, Grant::full);
}

TEST(HbmTier, ARaisedLimitBringsMemoryAgain) {
  HbmUnderTest t;
  t.tier().set_limit(0);
  t.wait_for_slabs(0);
  EXPECT_EQ(t.tier().usage().budget_bytes, 0u);
  t.injector.fail_nth("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY);
  t.tier().set_limit(t.budget_bytes());
  t.wait_for_slabs(t.budget_bytes());  // the driver is asked again
  EXPECT_EQ(t.tier().usage().budget_bytes, t.budget_bytes());
  const SlotId slot = t.slot();
  t.store(slot, 0x44);
  EXPECT_TRUE(t.loads(slot, 0x44));
}

TEST(HbmTier, ACopyThatFailsIsReportedAndTheNextOneWorks) {
  HbmUnderTest t;
  const SlotId slot = t.slot();
  t.injector.fail_nth("cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE);
  t.fill(0, 1);
  EXPECT_EQ(t.carry_out(Direction::store, slot, 0).outcome, Outcome::failed);
  t.store(slot, 2);
  EXPECT_TRUE(t.loads(slot, 2));
}

TEST(HbmTier, WithTheGpuItsPagesAreLostAndItsRoomIsGone) {
  HbmUnderTest t;
  const SlotId slot = t.slot();
  t.store(slot, 3);
  t.injector.fail_always("cuMemcpyDtoHAsync", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(t.carry_out(Direction::load, slot, 1).outcome, Outcome::lost);
  EXPECT_EQ(t.tier().usage().budget_bytes, 0u);
  EXPECT_EQ(t.tier().allocate(kTierPage)->grant, Grant::full);
}

TEST(HbmTier, AGpuWithLessMemoryIsAnError) {
  TierMachine machine("devices=1,hbm=64MiB,host=64MiB");
  HbmTier::Config config;
  config.driver = machine.driver;
  config.bytes = 128 * kMiB;
  const auto tier = HbmTier::create(std::move(config));
  ASSERT_FALSE(tier);
  EXPECT_EQ(tier.error().status, VMEM_ERROR_OUT_OF_MEMORY) << tier.error().message;
}

// ---- the space, by itself ----

TEST(HbmSpace, WhatWasGivenBackIsOneRunAgain) {
  HbmSpace space({8, 8});
  space.set_memory(0, true);
  space.set_memory(1, true);
  const auto a = *space.take(3), b = *space.take(5), c = *space.take(8);
  EXPECT_FALSE(space.take(1));
  space.give_back(b);
  space.give_back(a);
  EXPECT_EQ(space.take(8)->size(), 1u);
  space.give_back(c);
  EXPECT_EQ(space.free_granules(), 8u);
}

TEST(HbmSpace, ALimitKeepsTheFirstSlabs) {
  HbmSpace space({8, 8, 4});
  for (const std::uint32_t slab : {0u, 1u, 2u}) space.set_memory(slab, true);
  EXPECT_EQ(space.limit(15), 8u);
  EXPECT_EQ(space.usable_granules(), 8u);
  EXPECT_EQ(*space.is_superfluous(), 1u);
  EXPECT_EQ(space.limit(20), 20u);
  EXPECT_FALSE(space.is_superfluous());
  EXPECT_FALSE(space.lacks_memory());
}

}  // namespace
}  // namespace vmem::tiers
