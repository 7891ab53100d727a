// Requirements on every Tier; an implementation instantiates them in three lines:
//   struct MyTier { ... TierUnderTest; };
//   INSTANTIATE_TYPED_TEST_SUITE_P(My, TierConformance, MyTier);  // in namespace vmem::tiers
// TierUnderTest provides tier(), budget_bytes() of at least two pages, wait_until_ready() for after
// `later`, and two memories of 2 MiB to transfer: aim(transfer, i), fill(i, value) and
// holds(i, value). A tier with stream-ordered transfers also instantiates
// StreamOrderedTierConformance. examples/extending/toy_tier_test.cpp is a complete use.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tiers/tier.hpp"

namespace vmem::tiers {

inline constexpr std::uint64_t kTierPage = std::uint64_t{2} << 20;

template <class UnderTest>
class TierConformance : public ::testing::Test {
 protected:
  UnderTest under_test;

  SlotId slot() {
    for (;;) {
      const SlotGrant grant = *under_test.tier().allocate(kTierPage);
      if (grant.grant == Grant::granted) return grant.slot;
      EXPECT_EQ(grant.grant, Grant::later);
      under_test.wait_until_ready();
    }
  }
  std::uint64_t submit(Direction direction, SlotId slot, std::size_t memory) {
    Transfer transfer;
    transfer.slot = slot;
    under_test.aim(transfer, memory);
    transfer.bytes = kTierPage;
    transfer.direction = direction;
    transfer.watch = watch_ && direction == Direction::load;
    transfer.if_changed = watch_ && direction == Direction::store;
    EXPECT_TRUE(under_test.tier().submit({&transfer, 1}));
    EXPECT_NE(transfer.id, 0u);
    asked_ = transfer.if_changed;
    EXPECT_EQ(transfer.done != nullptr, under_test.tier().info().stream_ordered);
    return transfer.id;
  }
  // Enables watched loads and stores of changed pages only.
  void watch(bool on) { watch_ = on; }
  Completion wait_for(std::uint64_t id) {
    for (;;) {
      EXPECT_TRUE(under_test.tier().poll(completions_));
      for (const Completion& completion : completions_) {
        if (completion.id == id) return completion;
      }
      std::this_thread::yield();
    }
  }

  bool asked_ = false;  // whether the last transfer was a store-if-changed

 private:
  bool watch_ = false;
  std::vector<Completion> completions_;  // all so far
};
TYPED_TEST_SUITE_P(TierConformance);

TYPED_TEST_P(TierConformance, WhatWasStoredIsLoaded) {
  auto& t = this->under_test;
  const SlotId a = this->slot(), b = this->slot();
  t.fill(0, 0x11);
  t.fill(1, 0x22);
  const auto first = this->submit(Direction::store, a, 0);
  const auto second = this->submit(Direction::store, b, 1);
  EXPECT_EQ(this->wait_for(first).outcome, Outcome::done);
  EXPECT_EQ(this->wait_for(second).outcome, Outcome::done);
  EXPECT_EQ(this->wait_for(this->submit(Direction::load, b, 0)).outcome, Outcome::done);
  EXPECT_EQ(this->wait_for(this->submit(Direction::load, a, 1)).outcome, Outcome::done);
  EXPECT_TRUE(t.holds(0, 0x22));
  EXPECT_TRUE(t.holds(1, 0x11));
}

TYPED_TEST_P(TierConformance, TheBudgetHoldsAndReleasedSlotsServeAgain) {
  auto& t = this->under_test;
  std::vector<SlotId> slots;
  for (std::uint64_t i = 0; i < t.budget_bytes() / kTierPage; ++i) slots.push_back(this->slot());
  EXPECT_EQ(t.tier().allocate(kTierPage)->grant, Grant::full);
  EXPECT_EQ(t.tier().usage().used_bytes, t.budget_bytes());
  t.tier().release(slots.back());
  EXPECT_EQ(this->slot(), slots.back());
  for (const SlotId slot : slots) t.tier().release(slot);
  EXPECT_EQ(t.tier().usage().used_bytes, 0u);
}

template <class UnderTest>
class StreamOrderedTierConformance : public TierConformance<UnderTest> {};
TYPED_TEST_SUITE_P(StreamOrderedTierConformance);
// Programs without a stream-ordered tier include this header, too.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamOrderedTierConformance);

TYPED_TEST_P(StreamOrderedTierConformance, ExpectedSlotsAreMadeAheadUpToTheBudget) {
  auto& t = this->under_test;
  t.tier().expect(kTierPage, 1'000'000);
  while (t.tier().usage().ready_bytes < t.budget_bytes()) std::this_thread::yield();
  EXPECT_EQ(t.tier().allocate(kTierPage)->grant, Grant::granted);
}

TYPED_TEST_P(StreamOrderedTierConformance, TransfersOfOneDirectionEndInTheOrderOfTheirSubmission) {
  auto& t = this->under_test;
  const SlotId slot = this->slot();
  t.fill(0, 1);
  std::vector<std::uint64_t> submitted;
  for (int i = 0; i < 8; ++i) submitted.push_back(this->submit(Direction::store, slot, 0));
  std::vector<Completion> completions;
  while (completions.size() < submitted.size()) ASSERT_TRUE(t.tier().poll(completions));
  for (std::size_t i = 0; i < submitted.size(); ++i) EXPECT_EQ(completions[i].id, submitted[i]);
}

TYPED_TEST_P(TierConformance, AStoreIfChangedCopiesWhatChangedAndNothingElse) {
  auto& t = this->under_test;
  const SlotId slot = this->slot();
  t.fill(0, 0x11);
  this->wait_for(this->submit(Direction::store, slot, 0));
  for (int round = 0; round < 3; ++round) {
    const auto before = std::uint8_t(0x11 + round), after = std::uint8_t(0x12 + round);
    this->watch(true);
    this->wait_for(this->submit(Direction::load, slot, 1));
    EXPECT_FALSE(this->wait_for(this->submit(Direction::store, slot, 1)).changed);
    t.fill(1, after);
    const Completion stored = this->wait_for(this->submit(Direction::store, slot, 1));
    EXPECT_EQ(stored.changed, this->asked_) << "copied anyway, or because it was found to differ";
    if (t.tier().info().stream_ordered) {
      EXPECT_EQ(stored.changed_bytes, this->asked_ ? kTierPage : 0);
    }
    EXPECT_FALSE(this->wait_for(this->submit(Direction::store, slot, 1)).changed);
    this->watch(false);
    t.fill(0, before);
    this->wait_for(this->submit(Direction::load, slot, 0));
    EXPECT_TRUE(t.holds(0, after));
  }
}

REGISTER_TYPED_TEST_SUITE_P(TierConformance, WhatWasStoredIsLoaded, TheBudgetHoldsAndReleasedSlotsServeAgain,
                            AStoreIfChangedCopiesWhatChangedAndNothingElse);
REGISTER_TYPED_TEST_SUITE_P(StreamOrderedTierConformance, ExpectedSlotsAreMadeAheadUpToTheBudget,
                            TransfersOfOneDirectionEndInTheOrderOfTheirSubmission);

}  // namespace vmem::tiers
