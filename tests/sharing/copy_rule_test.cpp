// Which pages get a copy on disks, where they are loaded from, and which copy goes first.
#include "sharing/copy_rule.hpp"

#include <gtest/gtest.h>

#include "sharing/copy_list.hpp"

namespace vmem::sharing {
namespace {

using Place = CopyRule::Place;
constexpr std::uint64_t kBytes = 4096;

class Rule : public ::testing::Test {
 protected:
  // Loads of one page after the other, so that a rate is known.
  void measure(Place place, std::uint64_t page_us) {
    for (std::uint32_t i = 0; i < 64; ++i) {
      const auto begun = rule.begins(place, kBytes, now);
      now += page_us;
      rule.ended(begun, true, now);
    }
  }
  bool admits(bool fetched_before = true, bool last_source = false) {
    return rule.admits({.fetched_before = fetched_before, .last_source = last_source});
  }
  CopyRule rule;
  std::uint64_t now = 1;
};

TEST_F(Rule, OnlyAPageThatIsFetchedAgainGetsACopyAndOnlyFromFasterDisks) {
  measure(Place::nodes, 200);
  measure(Place::disks, 100);
  EXPECT_TRUE(admits());
  EXPECT_FALSE(admits(false));
  measure(Place::disks, 300);
  EXPECT_FALSE(admits());
  measure(Place::nodes, 400);
  EXPECT_TRUE(admits());
}

TEST_F(Rule, AlikeIsNotFaster) {
  measure(Place::nodes, 100);
  measure(Place::disks, 100);
  EXPECT_FALSE(admits());
  EXPECT_EQ(rule.first_place(now), Place::nodes);
}

TEST_F(Rule, APageOfTheLastSourceGetsACopyAlsoFromSlowerDisks) {
  measure(Place::nodes, 100);
  measure(Place::disks, 1000);
  EXPECT_TRUE(admits(true, true));
  EXPECT_FALSE(admits(false, true)) << "its first load";
}

TEST_F(Rule, WithoutARateOfTheDisksAShareOfThePagesTriesThem) {
  measure(Place::nodes, 100);
  std::uint64_t admitted = 0;
  for (std::uint64_t i = 0; i < 3 * CopyRule::kTrialEvery; ++i) admitted += admits() ? 1 : 0;
  EXPECT_EQ(admitted, 3 * CopyRule::kTrialPages);
  for (std::uint64_t i = 0; i < CopyRule::kTrialEvery; ++i) EXPECT_FALSE(admits(false));
}

// 15 loads are no rate.
TEST_F(Rule, UntilItIsKnownThatNodesAreFasterCopiesAreReadFromTheDisks) {
  EXPECT_EQ(rule.first_place(now), Place::disks);
  measure(Place::nodes, 100);
  for (int i = 0; i < 15; ++i) {
    const auto begun = rule.begins(Place::disks, kBytes, now);
    rule.ended(begun, true, now += 1000);
  }
  EXPECT_EQ(rule.first_place(now), Place::disks);
  measure(Place::disks, 1000);
  EXPECT_EQ(rule.first_place(now), Place::nodes);
}

TEST_F(Rule, DisksThatWereSlowerAreTriedAgainAfterAWhile) {
  measure(Place::nodes, 100);
  measure(Place::disks, 1000);
  now += CopyRule::kForgetUs;
  EXPECT_EQ(rule.first_place(now), Place::nodes);
  now += 1;
  EXPECT_EQ(rule.first_place(now), Place::disks);
  measure(Place::disks, 50);
  EXPECT_EQ(rule.first_place(now), Place::disks);
  EXPECT_TRUE(admits());
}

TEST_F(Rule, LoadsThatMovedNothingTellNoRate) {
  for (int i = 0; i < 100; ++i) rule.ended(rule.begins(Place::nodes, kBytes, now), false, now + 1);
  EXPECT_EQ(rule.bytes_s(Place::nodes), 0);
}

TEST(CopyList, TheCopyWhosePageWasLoadedFirstGoesFirst) {
  CopyList list;
  list.add_region(10, 4);
  for (const tiers::SlotId page : {10u, 11u, 12u}) {
    EXPECT_EQ(list.load(page), 0u);
    list.add(page, 100);
  }
  EXPECT_EQ(list.bytes(), 300u);
  EXPECT_EQ(list.eldest(), 10u);
  EXPECT_EQ(list.load(10), 1u);
  EXPECT_EQ(list.eldest(), 11u);
  list.remove(11);
  EXPECT_EQ(list.eldest(), 12u);
  EXPECT_EQ(list.find(11), nullptr);
  EXPECT_EQ(list.load(11), 2u) << "when it was loaded is still known";
  EXPECT_EQ(list.bytes(), 200u);
}

TEST(CopyList, ARegionThatEndsTakesItsCopiesWithIt) {
  CopyList list;
  list.add_region(0, 2);
  list.add_region(2, 2);
  for (const tiers::SlotId page : {1u, 2u}) {
    list.load(page);
    list.add(page, 100);
  }
  EXPECT_GT(list.metadata_bytes(), 0u);
  list.remove_region(0);
  EXPECT_FALSE(list.covers(1));
  EXPECT_EQ(list.find(1), nullptr);
  EXPECT_TRUE(list.covers(2) && list.covers(3) && !list.covers(4));
  EXPECT_NE(list.find(2), nullptr);
  list.add_region(0, 2);
  EXPECT_EQ(list.load(1), 0u) << "a page of another region";
}

TEST(CopyList, APagesNextCopyHasAnotherTicket) {
  CopyList list;
  list.add_region(0, 1);
  list.load(0);
  const std::uint64_t first = list.add(0, 1).ticket;
  list.remove(0);
  EXPECT_NE(list.add(0, 1).ticket, first);
}

}  // namespace
}  // namespace vmem::sharing
