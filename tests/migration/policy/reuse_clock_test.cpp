#include "migration/policy/reuse_clock.hpp"

#include <gtest/gtest.h>

namespace vmem::migration {
namespace {

TEST(ReuseDistance, CodesGrowWithDistanceAndEndWhereTheNextBegins) {
  std::uint8_t last = 0;
  for (Ticks distance = 0; distance < 100'000; ++distance) {
    const std::uint8_t code = ReuseDistance::encode(distance);
    EXPECT_GE(code, last);
    EXPECT_LT(distance, ReuseDistance::end(code));
    EXPECT_EQ(code == ReuseDistance::encode(distance + 1), distance + 1 < ReuseDistance::end(code)) << distance;
    last = code;
  }
  EXPECT_EQ(ReuseDistance::encode(~Ticks{0}), ReuseDistance::kMax);
  EXPECT_LT(ReuseDistance::kMax, ReuseDistance::kUnknown);
}

TEST(ReuseClock, BudgetIsAFewThousandTicksWhateverItsSize) {
  for (int shift = 12; shift < 40; ++shift) {
    const ReuseClock clock((std::uint64_t{1} << shift) + 1);
    EXPECT_GE(clock.budget(), 4096u);
    EXPECT_LE(clock.budget(), 8192u);
  }
}

TEST(ReuseClock, WindowFollowsRepeatsAndClosesWhenTheyStop) {
  ReuseClock clock(4096);
  EXPECT_EQ(clock.window(), 0u);
  clock.advance(100);
  clock.note_repeat(40);
  EXPECT_GE(clock.window(), 40u);
  clock.advance(5 * 4096);
  EXPECT_EQ(clock.window(), 0u);
  clock.note_repeat(100'000);
  EXPECT_LE(clock.window(), 4096u / 4);
}

}  // namespace
}  // namespace vmem::migration
