#include "tiers/place_rates.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint32_t kA = 7, kB = 3, kC = 5;
using Untried = PlaceRates::Untried;

class PlaceRatesTest : public ::testing::Test {
 protected:
  // So many stores and loads, one after the other, at that rate.
  void use(std::uint32_t place, double bytes_us, int pages = 64) {
    for (int i = 0; i < pages; ++i) one(place, i % 2 == 0 ? Direction::store : Direction::load, bytes_us);
  }
  void one(std::uint32_t place, Direction direction, double bytes_us) {
    const auto begun = rates.begins(place, direction, kPage, now_us);
    now_us += static_cast<std::uint64_t>(static_cast<double>(kPage) / bytes_us);
    rates.ended(begun, true, now_us);
  }
  // Of A and B.
  std::vector<std::uint32_t> levels() {
    rates.update(now_us);
    return {rates.level(kA), rates.level(kB)};
  }
  using Levels = std::vector<std::uint32_t>;

  PlaceRates rates;
  std::uint64_t now_us = 1;
};

TEST_F(PlaceRatesTest, TheFasterPlaceGoesFirstInEitherOrder) {
  for (const bool a_is_faster : {true, false}) {
    rates = {};
    rates.add(kA, Untried::first);
    rates.add(kB, Untried::first);
    use(kA, a_is_faster ? 3000 : 1000);
    use(kB, a_is_faster ? 1000 : 3000);
    EXPECT_EQ(levels(), (a_is_faster ? Levels{0, 1} : Levels{1, 0}));
    EXPECT_NEAR(rates.bytes_s(kA), a_is_faster ? 3e9 : 1e9, 1e7);
  }
}

TEST_F(PlaceRatesTest, PlacesThatDifferLittleAreAlikeAndTheOrderDoesNotFlap) {
  rates.add(kA, Untried::first);
  rates.add(kB, Untried::first);
  use(kA, 1000);
  use(kB, 1900);
  EXPECT_EQ(levels(), (Levels{0, 0}));
  use(kB, 2100);
  EXPECT_EQ(levels(), (Levels{1, 0}));
  int changes = 0;
  for (int i = 0; i < 100; ++i) {
    use(kB, i % 2 == 0 ? 1600 : 2400, 8);
    changes += rates.update(now_us) ? 1 : 0;
  }
  EXPECT_EQ(changes, 0);
  use(kB, 1400);
  EXPECT_EQ(levels(), (Levels{0, 0}));
}

TEST_F(PlaceRatesTest, APlaceWithoutARateIsTriedFirstOrLast) {
  rates.add(kA, Untried::first);
  rates.add(kB, Untried::last);
  EXPECT_EQ(levels(), (Levels{0, 1}));
  use(kA, 1, PlaceRates::kMeasured - 1);
  EXPECT_FALSE(rates.is_measured(kA));
  EXPECT_EQ(levels(), (Levels{0, 1}));
  use(kA, 1);
  EXPECT_EQ(levels(), (Levels{0, 1})) << "slow, but known";
  use(kB, 100);
  EXPECT_EQ(levels(), (Levels{1, 0}));
  rates.add(kC, Untried::first);
  EXPECT_EQ(levels(), (Levels{2, 1}));
  EXPECT_EQ(rates.level(kC), 0u);
}

TEST_F(PlaceRatesTest, ThatAPlaceWasTriedFirstDoesNotKeepItThere) {
  rates.add(kA, Untried::first);
  rates.add(kB, Untried::first);
  use(kA, 1000);
  EXPECT_EQ(levels(), (Levels{1, 0}));
  use(kB, 1700);
  EXPECT_EQ(levels(), (Levels{0, 0}));
}

TEST_F(PlaceRatesTest, APlaceThatWasSlowIsTriedAgainAfterAWhile) {
  rates.add(kA, Untried::first);
  rates.add(kB, Untried::first);
  use(kA, 100);
  use(kB, 1000);
  EXPECT_EQ(levels(), (Levels{1, 0}));
  now_us += PlaceRates::kForgetUs / 2;
  use(kA, 100, 1);
  now_us += PlaceRates::kForgetUs * 3 / 4;
  EXPECT_EQ(levels(), (Levels{1, 0})) << "it was used meanwhile";
  now_us += PlaceRates::kForgetUs / 2;
  use(kB, 1000, 1);
  EXPECT_EQ(levels(), (Levels{0, 1}));
  use(kA, 1000, PlaceRates::kMeasured);
  EXPECT_EQ(levels(), (Levels{0, 0}));
}

// Eight at a time, each of which takes eight times as long.
TEST_F(PlaceRatesTest, PagesThatShareAPathDoNotMakeItSlow) {
  rates.add(kA, Untried::first);
  rates.add(kB, Untried::first);
  use(kA, 1000);
  for (int round = 0; round < 10; ++round) {
    std::vector<PlaceRates::Begun> begun;
    for (int i = 0; i < 8; ++i) begun.push_back(rates.begins(kB, Direction::store, kPage, now_us));
    for (const auto& each : begun) {
      now_us += kPage / 1000;
      rates.ended(each, true, now_us);
    }
  }
  EXPECT_NEAR(rates.bytes_s(kB), rates.bytes_s(kA), 1e8);
}

TEST_F(PlaceRatesTest, TransfersThatMoveNothingSayNothing) {
  rates.add(kA, Untried::first);
  for (int i = 0; i < 100; ++i) {
    const auto begun = rates.begins(kA, Direction::store, kPage, now_us);
    rates.ended(begun, false, now_us += 10'000'000);
  }
  EXPECT_FALSE(rates.is_measured(kA));
  use(kA, 1000);
  EXPECT_NEAR(rates.bytes_s(kA), 1e9, 1e7) << "nothing is in flight any more";
  const auto late = rates.begins(kA, Direction::store, kPage, now_us);
  rates.remove(kA);
  rates.ended(late, true, now_us + 1);
  rates.ended(rates.begins(kA, Direction::store, kPage, now_us), true, now_us);
  EXPECT_EQ(rates.bytes_s(kA), 0);
}

}  // namespace
}  // namespace vmem::tiers
