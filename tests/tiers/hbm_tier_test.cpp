// HBM that is lent for pages of other nodes, on the emulated driver.
#include "tiers/hbm/hbm_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
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

// ---- pages that others read in place ----

// Registers slabs and keeps count of them.
class Registrations {
 public:
  PinningTier::Register registers() {
    return [this](std::span<std::byte> memory) -> Result<std::shared_ptr<void>> {
      if (refuse) return fail(VMEM_ERROR_UNSUPPORTED, "no such memory");
      bytes += memory.size();
      return std::shared_ptr<void>(memory.data(), [this, size = memory.size()](void*) {
        bytes -= size;
        if (on_end) on_end();
      });
    };
  }
  std::atomic<bool> refuse = false;
  std::atomic<std::uint64_t> bytes = 0;
  std::function<void()> on_end;
};

struct HbmPins : ::testing::Test {
  Registrations registrations;
  HbmUnderTest t;  // ends first

  void SetUp() override { t.tier().register_memory(registrations.registers()); }
  void wait_until_registered(std::uint64_t bytes) {
    while (registrations.bytes != bytes) std::this_thread::yield();
  }
  // All pages of 2 MiB, page i filled with i + 1.
  void fill_all() {
    wait_until_registered(t.budget_bytes());
    for (std::uint64_t i = 0; i < t.budget_bytes() / kTierPage; ++i) {
      slots.push_back(t.slot());
      t.store(slots[i], static_cast<unsigned char>(i + 1));
    }
  }
  // Copies the page by the driver, as a transport does: a processor cannot read GPU memory.
  bool is_all(std::span<const std::byte> page, unsigned char value) {
    std::vector<std::byte> bytes(kTierPage);
    const auto from = reinterpret_cast<CUdeviceptr>(page.data());
    const gpu::Driver& driver = *t.injector.driver();
    return page.size() == kTierPage &&
           driver->cuMemcpyDtoHAsync(bytes.data(), from, bytes.size(), nullptr) == CUDA_SUCCESS &&
           driver->cuStreamSynchronize(nullptr) == CUDA_SUCCESS &&
           std::ranges::all_of(bytes, [&](std::byte each) { return each == std::byte{value}; });
  }
  std::vector<SlotId> slots;
};

TEST_F(HbmPins, APinnedPageIsReadInPlace) {
  fill_all();
  const auto pinned = t.tier().pin(slots[4]);
  ASSERT_TRUE(pinned);
  EXPECT_TRUE(is_all(*pinned, 5));
  ASSERT_TRUE(t.tier().pin(slots[4])) << "several may read it";
  t.tier().unpin(slots[4]);
  t.tier().unpin(slots[4]);
  t.tier().release(slots[4]);
}

// The owner gets the slab back once the read has ended, and not before.
TEST_F(HbmPins, ALimitWaitsForReadsThatBeganBefore) {
  fill_all();
  const auto pinned = t.tier().pin(slots[9]);  // in the last slab, of 4 MiB
  ASSERT_TRUE(pinned);
  t.tier().release(slots[0]);
  t.tier().release(slots[1]);
  t.tier().set_limit(16 * kMiB);
  // That of the other page.
  while (t.injector.calls("cuMemcpyDtoDAsync") != 1) std::this_thread::yield();
  EXPECT_TRUE(t.loads(slots[8], 9));  // behind the move
  EXPECT_EQ(t.tier().slab_bytes(), t.budget_bytes());
  EXPECT_EQ(t.injector.calls("cuMemcpyDtoDAsync"), 1u);
  EXPECT_TRUE(is_all(*pinned, 10));
  t.tier().unpin(slots[9]);
  t.wait_for_slabs(16 * kMiB);
  EXPECT_TRUE(t.loads(slots[9], 10));
}

// A limit begins to move the page, the next one makes its slab one that stays, and only then the
// read begins: the page stays, too.
TEST_F(HbmPins, APageThatIsPinnedWhileItMovesStays) {
  fill_all();
  std::atomic<bool> moves = false, go_on = false;
  t.injector.on_call([&](std::string_view function) {
    if (function != "cuMemcpyDtoDAsync" || moves.exchange(true)) return;
    while (!go_on) std::this_thread::yield();
  });
  t.tier().release(slots[0]);
  while (t.tier().usage().ready_bytes != kTierPage) std::this_thread::yield();
  t.tier().set_limit(16 * kMiB);
  while (!moves) std::this_thread::yield();
  EXPECT_FALSE(t.tier().pin(slots[8])) << "its slab is to go back";
  t.tier().set_limit(t.budget_bytes());
  const auto pinned = t.tier().pin(slots[8]);
  ASSERT_TRUE(pinned);
  const std::uint64_t wipes = t.injector.calls("cuMemsetD8Async");
  go_on = true;
  while (t.injector.calls("cuMemsetD8Async") == wipes) std::this_thread::yield();
  EXPECT_TRUE(t.loads(slots[7], 8));  // behind the wipe
  EXPECT_TRUE(is_all(*pinned, 9));
  EXPECT_EQ(t.tier().pin(slots[8])->data(), pinned->data());
  t.tier().unpin(slots[8]);
  t.tier().unpin(slots[8]);
  EXPECT_TRUE(t.loads(slots[8], 9));
  EXPECT_EQ(t.tier().usage().ready_bytes, kTierPage) << "the other place is free again";
  t.injector.on_call({});
}

TEST_F(HbmPins, NothingIsPinnedInASlabThatIsToGoBack) {
  fill_all();
  t.tier().set_limit(16 * kMiB);  // no page can move
  EXPECT_FALSE(t.tier().pin(slots[8]));
  EXPECT_TRUE(t.tier().pin(slots[7]));
  t.tier().unpin(slots[7]);
  EXPECT_TRUE(t.loads(slots[8], 9));
}

TEST_F(HbmPins, APageWhoseGranulesLieApartIsNot) {
  fill_all();
  for (const std::size_t i : {1u, 3u}) t.tier().release(slots[i]);
  const SlotId apart = t.slot(4 * kMiB);
  t.store(apart, 0x77, 4 * kMiB);
  EXPECT_FALSE(t.tier().pin(apart));
}

TEST_F(HbmPins, ASlabIsRegisteredUntilItGoesBack) {
  wait_until_registered(t.budget_bytes());
  std::atomic<std::uint64_t> freed_before = 99;
  registrations.on_end = [&] { freed_before = t.injector.calls("cuMemFree"); };
  t.tier().set_limit(16 * kMiB);
  t.wait_for_slabs(16 * kMiB);
  while (t.injector.calls("cuMemFree") != 1) std::this_thread::yield();
  EXPECT_EQ(freed_before, 0u);
  EXPECT_EQ(registrations.bytes, 16 * kMiB);
  t.tier().set_limit(t.budget_bytes());
  wait_until_registered(t.budget_bytes());
  EXPECT_EQ(t.tier().finish(), Finished::all_ended);
  EXPECT_EQ(registrations.bytes, 0u);
  registrations.on_end = {};
}

TEST(HbmTier, ASlabThatCannotBeRegisteredIsUsedAllTheSame) {
  Registrations registrations;
  registrations.refuse = true;
  HbmUnderTest t;
  t.tier().register_memory(registrations.registers());
  const SlotId slot = t.slot();
  t.store(slot, 7);
  EXPECT_FALSE(t.tier().pin(slot));
  EXPECT_TRUE(t.loads(slot, 7));
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
