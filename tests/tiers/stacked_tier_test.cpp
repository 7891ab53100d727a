#include "tiers/stacked_tier.hpp"

#include <gtest/gtest.h>

#include "tiers/disk_fixture.hpp"
#include "tiers/tier_conformance.hpp"

namespace vmem::tiers {
namespace {

// Two disks of four pages each.
class StackUnderTest {
 public:
  Tier& tier() { return stack_; }
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
  void wait_until_ready() { std::this_thread::yield(); }
  void aim(Transfer& transfer, std::size_t i) { first_.aim(transfer, i); }
  void fill(std::size_t i, unsigned char value) { first_.fill(i, value); }
  bool holds(std::size_t i, unsigned char value) { return first_.holds(i, value); }

 private:
  DiskFixture first_{kTierPage, 4 * kTierPage, uring()}, second_{kTierPage, 4 * kTierPage, uring()};
  StackedTier stack_{{&first_.tier(), &second_.tier()}};
};
INSTANTIATE_TYPED_TEST_SUITE_P(Stacked, TierConformance, StackUnderTest);

// Refuses every slot with the given status.
class RefusingTier : public Tier {
 public:
  explicit RefusingTier(vmem_status why) : why_(why) {}
  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override { return {}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<SlotGrant> allocate(std::uint64_t) override { return fail(why_, "as scripted"); }
  void release(SlotId) override {}
  Status submit(std::span<Transfer>) override { return {}; }
  Status poll(std::vector<Completion>&) override { return {}; }
  Finished finish() noexcept override { return Finished::all_ended; }

 private:
  const TierInfo info_{.name = "refusing"};
  const vmem_status why_;
};

// Has one slot, 5: degraded, and loaded straight into frames of device 1.
class AbleTier final : public RefusingTier, public FrameLoadingTier, public DegradableTier {
 public:
  AbleTier() : RefusingTier(VMEM_ERROR_DRIVER) {}
  Result<SlotGrant> allocate(std::uint64_t) override { return SlotGrant{Grant::granted, 5}; }
  bool loads_into_frames(SlotId slot, int device) const override { return slot == 5 && device == 1; }
  bool degraded(SlotId slot) const override { return slot == 5; }
};

TEST(StackedTier, EachTierIsAskedForItsOwnSlotsAndOnesWithoutAnAbilityAreNot) {
  RefusingTier first(VMEM_ERROR_DRIVER);
  AbleTier second;
  const StackedTier stack({&first, &second});
  const SlotId of_first = 5, of_second = StackedTier({&first, &second}).allocate(kTierPage)->slot;
  EXPECT_FALSE(stack.degraded(of_first));
  EXPECT_FALSE(stack.loads_into_frames(of_first, 1));
  EXPECT_TRUE(stack.degraded(of_second));
  EXPECT_FALSE(stack.loads_into_frames(of_second, 0));
  EXPECT_TRUE(stack.loads_into_frames(of_second, 1));
}

// A timeout may be temporary, so it takes precedence: the caller waits.
TEST(StackedTier, ThatOneDoesNotAnswerIsToldBeforeThatAnotherOneFailed) {
  RefusingTier away(VMEM_ERROR_TIMEOUT), dead(VMEM_ERROR_DRIVER);
  EXPECT_EQ(StackedTier({&away, &dead}).allocate(kTierPage).error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_EQ(StackedTier({&dead, &away}).allocate(kTierPage).error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_EQ(StackedTier({&dead}).allocate(kTierPage).error().status, VMEM_ERROR_DRIVER);
}

TEST(StackedTier, TheSecondIsUsedWhenTheFirstIsFull) {
  DiskFixture first(kTierPage, 2 * kTierPage, uring()), second(kTierPage, 4 * kTierPage, uring());
  StackedTier stack({&first.tier(), &second.tier()});
  std::vector<SlotId> slots;
  while (slots.size() < 3) {
    const SlotGrant grant = *stack.allocate(kTierPage);
    ASSERT_NE(grant.grant, Grant::full);
    if (grant.grant == Grant::granted) slots.push_back(grant.slot);
  }
  EXPECT_EQ(first.tier().usage().used_bytes, 2 * kTierPage);
  EXPECT_EQ(second.tier().usage().used_bytes, kTierPage);
  stack.release(slots[0]);
  EXPECT_EQ(stack.allocate(kTierPage)->slot, slots[0]) << "the first is preferred";
  EXPECT_EQ(stack.info().name, "nvme, then nvme");
}

}  // namespace
}  // namespace vmem::tiers
