#include "base/outage_log.hpp"

#include <gtest/gtest.h>

namespace vmem {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

class OutageLogTest : public ::testing::Test {
 protected:
  // Fails ten times a second; returns how often that is logged.
  int fail_for(std::uint64_t seconds) {
    int lines = 0;
    for (std::uint64_t i = 0; i < 10 * seconds; ++i) {
      if (log.failed()) ++lines;
      clock.advance(kSecondUs / 10);
    }
    return lines;
  }
  ManualClock clock;
  OutageLog log{clock};
};

TEST_F(OutageLogTest, TheFirstFailureIsLoggedAndThenOneEachTenSeconds) {
  const auto first = log.failed();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->failures, 1u);
  EXPECT_EQ(first->seconds, 0u);
  EXPECT_EQ(fail_for(10), 0);
  const auto second = log.failed();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->failures, 102u);
  EXPECT_EQ(second->seconds, 10u);
}

TEST_F(OutageLogTest, TheEndIsLoggedOnceWithHowLongItLasted) {
  EXPECT_FALSE(log.ended()) << "nothing has failed";
  EXPECT_EQ(fail_for(25), 3);
  const auto end = log.ended();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->failures, 250u);
  EXPECT_EQ(end->seconds, 25u);
  EXPECT_FALSE(log.ended());
}

TEST_F(OutageLogTest, ShortOutagesInARowAreNotEachLogged) {
  int begun = 0, ended = 0;
  for (int i = 0; i < 100; ++i) {
    begun += fail_for(1);
    if (log.ended()) ++ended;
  }
  EXPECT_EQ(begun, 10);
  EXPECT_EQ(ended, begun) << "an outage that nobody heard of ends unheard";
}

}  // namespace
}  // namespace vmem
