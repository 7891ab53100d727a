#include "migration/policy/scan.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <random>

namespace vmem::migration {
namespace {

struct Watcher {
  std::uint32_t pages;
  ScanSet scans = {};
  Ticks now = 0;
  Scan* last = nullptr;

  Scan* use(std::uint32_t first, std::uint32_t count = 1, std::uint16_t stream = 1) {
    return last = scans.observe({first, count, stream}, pages, ++now, [](Scan&) {});
  }
  Scan* use_all(std::initializer_list<std::uint32_t> firsts) {
    for (const std::uint32_t first : firsts) use(first);
    return last;
  }
};

std::vector<std::uint32_t> next_pages(const Scan& scan, std::uint32_t region_pages, std::uint32_t limit) {
  std::vector<std::uint32_t> pages;
  scan.walk(region_pages, limit, [&](std::uint32_t page) { return pages.push_back(page), true; });
  return pages;
}

using Pages = std::vector<std::uint32_t>;

TEST(Scan, ForwardBackwardAndStrided) {
  Watcher watcher{.pages = 100};
  ASSERT_TRUE(watcher.use_all({10, 11, 12}));
  EXPECT_EQ(next_pages(*watcher.last, 100, 2), (Pages{13, 14}));
  watcher = {.pages = 100};
  ASSERT_TRUE(watcher.use_all({12, 11, 10}));
  EXPECT_EQ(next_pages(*watcher.last, 100, 2), (Pages{9, 8}));
  watcher = {.pages = 100};
  ASSERT_TRUE(watcher.use_all({10, 12, 14}));
  EXPECT_EQ(next_pages(*watcher.last, 100, 2), (Pages{16, 18}));
}

TEST(Scan, WideStridesAreSeenWithTheThirdUse) {
  Watcher watcher{.pages = 1000};
  EXPECT_FALSE(watcher.use(3));
  EXPECT_FALSE(watcher.use(103));
  ASSERT_TRUE(watcher.use(203));
  EXPECT_EQ(next_pages(*watcher.last, 1000, 2), (Pages{303, 403}));
}

TEST(Scan, EndsAtTheEndOfTheRegionUnlessItHasTurned) {
  Watcher watcher{.pages = 6};
  watcher.use_all({0, 1, 2, 3, 4, 5});
  EXPECT_EQ(next_pages(*watcher.last, 6, 3), Pages{});
  ASSERT_TRUE(watcher.use(0));
  watcher.use_all({1, 2, 3, 4});
  EXPECT_EQ(next_pages(*watcher.last, 6, 3), (Pages{5, 0, 1}));
}

TEST(Scan, TurnsInsideTheRegionAreRemembered) {
  Watcher watcher{.pages = 100};
  watcher.use_all({20, 21, 22, 23, 20, 21});
  EXPECT_EQ(next_pages(*watcher.last, 100, 4), (Pages{22, 23, 20, 21}));
  watcher.use_all({22, 23, 24});  // continues instead of repeating
  EXPECT_EQ(next_pages(*watcher.last, 100, 2), (Pages{25, 26}));
}

TEST(Scan, RepeatedUsesAreNoSteps) {
  Watcher watcher{.pages = 100};
  EXPECT_FALSE(watcher.use_all({7, 7, 7, 8, 8}));
  ASSERT_TRUE(watcher.use(9));
  EXPECT_FALSE(watcher.use(9));
  EXPECT_EQ(next_pages(watcher.scans.all()[0], 100, 1), Pages{10});
}

TEST(Scan, SkippedStepsAreForgiven) {
  Watcher watcher{.pages = 100};
  ASSERT_TRUE(watcher.use_all({1, 2, 3, 5, 6}));
  EXPECT_EQ(next_pages(*watcher.last, 100, 1), Pages{7});
}

TEST(Scan, TwoInterleavedInOneRegionAndStream) {
  Watcher watcher{.pages = 1000};
  for (std::uint32_t i = 0; i < 4; ++i) watcher.use_all({100 + i, 700 - i});
  EXPECT_EQ(next_pages(*watcher.last, 1000, 2), (Pages{696, 695}));
  ASSERT_TRUE(watcher.use(104));
  EXPECT_EQ(next_pages(*watcher.last, 1000, 2), (Pages{105, 106}));
}

TEST(Scan, SurvivesRandomUsesBetweenItsSteps) {
  Watcher watcher{.pages = 100'000};
  std::mt19937 random(11);
  for (std::uint32_t i = 0; i < 100; ++i) {
    for (int other = 0; other < 3; ++other) watcher.use(50'000 + random() % 50'000);
    watcher.use(i);
    EXPECT_TRUE(watcher.last || i < 3) << i;
  }
}

TEST(Scan, GrowingRunsFromOnePlaceAreNoScan) {
  Watcher watcher{.pages = 100};
  for (std::uint32_t count = 1; count < 10; ++count) EXPECT_FALSE(watcher.use(5, count));
}

TEST(Scan, RandomUsesAreHardlyEverTaken) {
  Watcher watcher{.pages = 10'000};
  std::mt19937 random(5);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) taken += watcher.use(random() % 10'000) != nullptr;
  EXPECT_LT(taken, 40);
}

}  // namespace
}  // namespace vmem::migration
