#include "tiers/stacked_tier.hpp"

#include <gtest/gtest.h>

#include "base/clock.hpp"
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

// Each transfer takes so long after the one before it.
class TimedTier final : public Tier {
 public:
  TimedTier(const char* name, ManualClock& clock) : info_{.name = name}, clock_(clock) {}
  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override { return {}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<SlotGrant> allocate(std::uint64_t) override {
    ++pages;
    return full ? SlotGrant{} : SlotGrant{Grant::granted, static_cast<SlotId>(pages)};
  }
  void release(SlotId) override {}
  Status submit(std::span<Transfer> transfers) override {
    for (Transfer& transfer : transfers) {
      transfer.id = next_transfer_id();
      clock_.advance(page_us);
      ended_.push_back({.id = transfer.id, .outcome = Outcome::done, .error = {}, .changed = true});
    }
    return {};
  }
  Status poll(std::vector<Completion>& completions) override {
    completions.insert(completions.end(), ended_.begin(), ended_.end());
    ended_.clear();
    return {};
  }
  Finished finish() noexcept override { return Finished::all_ended; }

  std::uint64_t page_us = 1000, pages = 0;
  bool full = false;

 private:
  const TierInfo info_;
  ManualClock& clock_;
  std::vector<Completion> ended_;
};

class MeasuredStack : public ::testing::Test {
 protected:
  void store(int pages) {
    for (int i = 0; i < pages; ++i) {
      Transfer transfer{.slot = stack.allocate(kTierPage)->slot, .bytes = kTierPage, .direction = Direction::store};
      ASSERT_TRUE(stack.submit({&transfer, 1}));
      std::vector<Completion> completions;
      ASSERT_TRUE(stack.poll(completions));
      ASSERT_EQ(completions.size(), 1u);
    }
  }
  // Of so many new pages, those of the first tier.
  std::uint64_t to_first(int pages) {
    const std::uint64_t before = first.pages;
    store(pages);
    return first.pages - before;
  }
  ManualClock clock;
  TimedTier first{"lenders", clock}, second{"disk", clock};
  StackedTier stack{{&first, &second}, &clock};
};

TEST_F(MeasuredStack, ALaterTierIsTriedNowAndThenUntilItIsMeasured) {
  EXPECT_EQ(to_first(StackedTier::kTrialEvery), StackedTier::kTrialEvery - StackedTier::kTrialPages);
  EXPECT_EQ(to_first(1000), 1000u) << "as fast as the first";
}

TEST_F(MeasuredStack, PagesGoToTheFasterTierInEitherOrder) {
  second.page_us = 100;
  store(StackedTier::kTrialEvery);
  EXPECT_EQ(to_first(1000), 0u);
  first.page_us = 1;  // not known, as long as no page comes from there
  second.full = true;
  EXPECT_EQ(to_first(200), 200u);
  second.full = false;
  EXPECT_EQ(to_first(1000), 1000u);
}

TEST_F(MeasuredStack, WithoutAClockTheOrderStays) {
  StackedTier fixed({&first, &second});
  for (int i = 0; i < 1000; ++i) (void)fixed.allocate(kTierPage);
  EXPECT_EQ(first.pages, 1000u);
}

}  // namespace
}  // namespace vmem::tiers
