// The program's position in its use history, and the uses that follow it.
#include "migration/policy/use_history.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace vmem::migration::testing {
namespace {

using Step = UseHistory::Step;

void use_all(UseHistory& history, const std::vector<std::uint32_t>& regions) {
  for (const std::uint32_t region : regions) history.add({region});
}

std::vector<std::uint32_t> range(std::uint32_t first, std::uint32_t last) {
  std::vector<std::uint32_t> regions;
  for (; first <= last; ++first) regions.push_back(first);
  return regions;
}

// A pass over 1 to 40, and half of another.
UseHistory half_way() {
  UseHistory history;
  use_all(history, range(1, 40));
  use_all(history, range(1, 20));
  return history;
}

std::uint32_t next(const UseHistory& history, UseHistory::Position distance = 1) {
  return history.at(history.now() + distance).value;
}

TEST(UseHistory, NothingIsExpectedOfWhatWasNeverSeen) {
  UseHistory history;
  use_all(history, range(1, 100));
  EXPECT_FALSE(history.trusted());
}

TEST(UseHistory, ASecondPassIsRecognisedAndFollowed) {
  UseHistory history = half_way();
  ASSERT_TRUE(history.trusted());
  for (std::uint32_t i = 1; i <= 20; ++i) EXPECT_EQ(next(history, i), 20 + i);
  EXPECT_EQ(next(history, 21), 1u) << "after the end of the pass comes its beginning";
}

TEST(UseHistory, RepeatsOfOneRegionAreOneUse) {
  UseHistory history;
  history.add({1});
  EXPECT_EQ(history.add({1}), Step::repeated);
  EXPECT_EQ(history.end(), 1u);
}

TEST(UseHistory, TheNextUseIsTheFirstOneAhead) {
  UseHistory history = half_way();
  EXPECT_EQ(history.next_use({25}) - history.now(), 5u);
  EXPECT_EQ(history.next_use({20}) - history.now(), 40u) << "just used: a whole pass away";
  EXPECT_EQ(history.next_use({99}), UseHistory::kNever);
}

TEST(UseHistory, AUseLeftOutIsSkipped) {
  UseHistory history = half_way();
  EXPECT_EQ(history.add({24}), Step::advanced);
  EXPECT_TRUE(history.trusted());
  EXPECT_EQ(next(history), 25u);
}

TEST(UseHistory, WhereEachUseSkipsManyNothingIsTrusted) {
  UseHistory history;
  use_all(history, range(1, 40));
  use_all(history, range(1, 8));
  for (int i = 0; i < 3; ++i) {
    for (std::uint32_t unit = 1; unit <= 40; unit += 9) history.add({unit});
  }
  EXPECT_FALSE(history.trusted());
}

TEST(UseHistory, TrustEndsWithSkipsAndComesBack) {
  UseHistory history;
  use_all(history, range(1, 100));
  use_all(history, range(1, 18));
  ASSERT_TRUE(history.trusted());
  history.add({58});
  EXPECT_TRUE(history.trusted()) << "39 were skipped, of which four count against one of 12";
  history.add({98});
  EXPECT_FALSE(history.trusted()) << "and as many again";
  use_all(history, range(1, 18));
  EXPECT_TRUE(history.trusted());
}

TEST(UseHistory, AFewStrangersDoNotEndIt) {
  UseHistory history = half_way();
  for (const std::uint32_t stranger : {101, 102, 103}) EXPECT_EQ(history.add({stranger}), Step::strayed);
  EXPECT_EQ(history.add({21}), Step::advanced);
  EXPECT_TRUE(history.trusted());
  EXPECT_EQ(next(history), 22u);
}

TEST(UseHistory, ManyStrangersDo) {
  UseHistory history = half_way();
  use_all(history, range(101, 120));
  EXPECT_FALSE(history.trusted());
}

TEST(UseHistory, AnEndedRegionIsNotExpected) {
  UseHistory history = half_way();
  history.forget({25});
  EXPECT_EQ(history.next_use({25}), UseHistory::kNever);
}

TEST(UseHistory, DeathsAreExpectedLikeUses) {
  UseHistory history;
  for (int pass = 0; pass < 2; ++pass) {
    use_all(history, range(1, 30));
    if (pass == 0) history.add_death({7});
    if (pass == 0) use_all(history, range(31, 40));
  }
  // In the first pass region 7 died after the use of 30; now the program is at 30 again.
  ASSERT_TRUE(history.trusted());
  EXPECT_EQ(history.at(history.now()).value, 30u);
  EXPECT_EQ(history.next_death({7}), history.now() + 1);
  EXPECT_EQ(history.next_death({8}), UseHistory::kNever);
}

TEST(UseHistory, TheRecordIsBoundedAndStaysRight) {
  UseHistory history;
  for (int pass = 0; pass < 20000; ++pass) use_all(history, range(1, 40));
  EXPECT_LT(history.bytes(), std::uint64_t{11} << 20) << "all 800,000 uses would take 16 MB";
  use_all(history, range(1, 20));
  ASSERT_TRUE(history.trusted());
  EXPECT_EQ(next(history), 21u);
  EXPECT_EQ(history.next_use({30}) - history.now(), 10u);
}

}  // namespace
}  // namespace vmem::migration::testing
