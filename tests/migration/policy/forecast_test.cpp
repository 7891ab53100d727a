// Forecasts which pages must leave and which can be fetched, by replaying the expected uses.
#include "migration/policy/forecast.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace vmem::migration::testing {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

struct Device {
  UseHistory history;
  std::map<std::uint32_t, Forecast::Holding> regions;
  Forecast forecast;

  void add(std::uint32_t first, std::uint32_t last, bool resident = false, std::uint64_t bytes = kPage) {
    for (; first <= last; ++first) regions[first] = {bytes, bytes, resident ? bytes : 0, false};
  }
  void use(std::uint32_t first, std::uint32_t last) {
    for (; first <= last; ++first) history.add({first});
  }
  void make(std::uint64_t free_pages, std::uint64_t near_pages = 0) {
    ASSERT_TRUE(history.trusted());
    std::vector<UnitId> residents;
    for (const auto& [id, region] : regions) {
      if (region.resident_bytes != 0 && !region.dead) residents.push_back({id});
    }
    forecast.make(history, free_pages * kPage, near_pages * kPage, residents,
                  [&](UnitId id) -> std::optional<Forecast::Holding> {
                    const auto found = regions.find(id.value);
                    return found == regions.end() ? std::nullopt : std::optional(found->second);
                  });
  }
  static std::vector<std::uint32_t> ids(std::span<const Forecast::Event> events) {
    std::vector<std::uint32_t> ids;
    for (const auto& event : events) ids.push_back(event.unit.value);
    return ids;
  }
  std::vector<std::uint32_t> leaves() const { return ids(forecast.leaves()); }
  std::vector<std::uint32_t> fetches() const { return ids(forecast.fetches()); }
};

// Each pass uses 1 to 20, then allocates, uses and frees 21 to 40.
struct Passes : ::testing::Test, Device {
  void pass() {
    use(1, 20);
    for (std::uint32_t temporary = 21; temporary <= 40; ++temporary) history.add({temporary});
    for (std::uint32_t temporary = 21; temporary <= 40; ++temporary) history.add_death({temporary});
  }
  void SetUp() override {
    pass();
    use(1, 20);
  }
};

TEST_F(Passes, WithRoomForAllNothingLeaves) {
  add(1, 20, true);
  add(21, 40);
  for (std::uint32_t i = 21; i <= 40; ++i) regions[i].dead = true;
  make(20);
  EXPECT_TRUE(leaves().empty());
  EXPECT_TRUE(fetches().empty());
}

TEST_F(Passes, ForWhatIsAllocatedNextThoseLeaveThatAreUsedLastAndNoMore) {
  add(1, 20, true);
  add(21, 40);
  for (std::uint32_t i = 21; i <= 40; ++i) regions[i].dead = true;
  make(15);
  EXPECT_EQ(leaves(), (std::vector<std::uint32_t>{20, 19, 18, 17, 16}));
  EXPECT_TRUE(fetches().empty()) << "what is allocated anew holds nothing to fetch";
  const UseHistory::Position first = forecast.leaves().front().at;
  EXPECT_EQ(history.at(first).value, 36u) << "the sixteenth finds no room";
}

TEST_F(Passes, WhatIsMissingIsFetchedIntoRoomThatNobodyNeedsBefore) {
  use(21, 40);
  add(1, 10, true);
  add(11, 20);
  add(21, 40, true);
  for (std::uint32_t i = 21; i <= 40; ++i) regions[i].dead = true;
  make(20);
  EXPECT_EQ(fetches(), (std::vector<std::uint32_t>{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}));
  make(6);
  EXPECT_EQ(fetches(), (std::vector<std::uint32_t>{11, 12, 13, 14, 15, 16}));
}

TEST_F(Passes, RoomThatIsNeededBeforeIsNotFetchedInto) {
  // All free room is allocated before the next uses of 1 to 20.
  add(1, 20);
  add(21, 40);
  for (std::uint32_t i = 21; i <= 40; ++i) regions[i].dead = true;
  make(20);
  EXPECT_TRUE(fetches().empty());
  make(23);
  EXPECT_EQ(fetches(), (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST_F(Passes, WhatComesNextIsFetchedAnyway) {
  use(21, 40);
  add(1, 20);
  add(21, 40, true);
  make(0, 4);
  EXPECT_EQ(fetches(), (std::vector<std::uint32_t>{1, 2, 3, 4}));
}

// What is allocated between the passes pushes the least soon used out in any case.
TEST(ForecastOfFetches, WhatHasToLeaveMakesRoomEarlyForWhatComesFirst) {
  Device device;
  const auto begin = [&] { device.use(1, 10); };
  const auto rest = [&] {
    device.use(31, 40);
    device.use(11, 30);
    for (std::uint32_t temporary = 11; temporary <= 30; ++temporary) device.history.add_death({temporary});
  };
  begin(), rest(), begin(), rest(), begin();
  device.add(1, 10, true);
  device.add(31, 35, true);
  device.add(36, 40);
  device.add(11, 30);
  for (std::uint32_t i = 11; i <= 30; ++i) device.regions[i].dead = true;
  device.make(0);
  ASSERT_GE(device.leaves().size(), 5u);
  auto first = device.leaves();
  first.resize(5);
  EXPECT_EQ(first, (std::vector<std::uint32_t>{10, 9, 8, 7, 6}));
  EXPECT_EQ(device.fetches(), (std::vector<std::uint32_t>{36, 37, 38, 39, 40}));
}

// Each pass uses more live pages than fit, so the most recently used pages leave. Pages that stay
// resident must not leave early, because they are used before their turn comes.
TEST(ForecastOfARing, NothingLeavesLongBeforeItsRoomIsWanted) {
  Device device;
  device.use(1, 40);
  device.use(1, 20);
  device.add(1, 20, true);
  device.add(21, 40);
  device.make(0);
  EXPECT_EQ(device.leaves(), (std::vector<std::uint32_t>{20}));
}

// A pass over 1 to 40 with 50 in between, and half of another; 1 to 20 are resident.
struct ForecastOfSizes : ::testing::Test, Device {
  void SetUp() override {
    for (const bool whole : {true, false}) {
      use(1, 10);
      use(50, 50);
      use(11, 20);
      if (whole) use(21, 40);
    }
    add(1, 20, true);
  }
};

TEST_F(ForecastOfSizes, OfWhatIsNeededLateTheSizeThatIsWantedLeaves) {
  add(50, 50, true, 2 * kPage);
  add(21, 21, false, 2 * kPage);
  make(0);
  EXPECT_EQ(leaves(), (std::vector<std::uint32_t>{50}));
}

TEST_F(ForecastOfSizes, OfALargeRegionOnlySoMuchLeavesAsIsWanted) {
  regions[50] = {128 * kPage, kPage, 128 * kPage, false};
  add(21, 21);
  for (std::uint32_t i = 11; i <= 20; ++i) regions[i].resident_bytes = 0;
  make(0);
  ASSERT_FALSE(forecast.leaves().empty());
  EXPECT_EQ(forecast.leaves().front().unit.value, 50u);
  EXPECT_LE(forecast.leaves().front().pages, 11u) << "21 and, before they are used again, 11 to 20 need room";
}

TEST_F(Passes, TheSameIsExpectedOfTheSame) {
  add(1, 20, true);
  add(21, 40);
  for (std::uint32_t i = 21; i <= 40; ++i) regions[i].dead = true;
  make(15, 3);
  const auto left = leaves(), fetched = fetches();
  make(15, 3);
  EXPECT_EQ(leaves(), left);
  EXPECT_EQ(fetches(), fetched);
}

// On random programs: forecast victims are resident and live, and not used before their room is
// needed. Forecast fetches are absent, used at the stated position, and in order of position.
TEST(ForecastFuzz, IsSound) {
  std::size_t events = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return std::uint32_t(random() % n); };
    Device device;
    std::vector<std::pair<std::uint32_t, bool>> program;  // region, and whether it dies afterwards
    for (int i = 0; i < 300; ++i) program.emplace_back(1 + below(60), below(6) == 0);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t i = 0; i < (pass == 0 ? program.size() : 40 + below(200)); ++i) {
        device.history.add({program[i].first});
        if (program[i].second) device.history.add_death({program[i].first});
      }
    }
    if (!device.history.trusted()) continue;
    for (std::uint32_t region = 1; region <= 60; ++region) {
      const std::uint64_t page_bytes = kPage << below(2), pages = 1 + below(3);
      device.regions[region] = {pages * page_bytes, page_bytes, below(std::uint32_t(pages) + 1) * page_bytes,
                                below(4) == 0};
    }
    device.make(below(40), below(10));
    std::map<std::uint32_t, std::uint64_t> left;
    for (const auto& event : device.forecast.leaves()) {
      const auto& region = device.regions[event.unit.value];
      EXPECT_FALSE(region.dead);
      left[event.unit.value] += event.pages * region.page_bytes;
      EXPECT_LE(left[event.unit.value], region.resident_bytes);
      EXPECT_GT(event.pages, 0u);
      EXPECT_GT(device.history.next_use(event.unit), event.at);
    }
    UseHistory::Position last = 0;
    std::set<std::uint32_t> seen;
    for (const auto& event : device.forecast.fetches()) {
      const auto& region = device.regions[event.unit.value];
      EXPECT_TRUE(seen.insert(event.unit.value).second);
      EXPECT_TRUE(region.resident_bytes < region.bytes && !region.dead);
      EXPECT_EQ(device.history.next_use(event.unit), event.at);
      EXPECT_GT(event.at, last);
      last = event.at;
    }
    events += device.forecast.leaves().size() + device.forecast.fetches().size();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  std::printf("seeds 1 to 200, %zu events\n", events);
  EXPECT_GT(events, 1000u);
}

}  // namespace
}  // namespace vmem::migration::testing
