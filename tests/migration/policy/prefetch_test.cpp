// Timely prefetch: after the warm-up a scan finds its pages resident, and no page is requested
// twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "migration/policy/cache_simulator.hpp"
#include "migration/policy/prefetch_simulator.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

Timing run(const Trace& trace, const Machine& machine, std::uint32_t prefetch_pages = 8) {
  const auto policy =
      make_second_chance_policy({.prefetch_pages = prefetch_pages, .hbm_bytes = {machine.frames * kPageBytes}});
  const Timing timing = simulate(*policy, trace, machine);
  std::printf("%-24s prefetch %2u: %5zu uses, %4llu waits, waited %7.1f of %8.1f, fetched %5llu, wasted %llu\n",
              trace.name.c_str(), prefetch_pages, trace.references.size(), (unsigned long long)timing.waits,
              timing.waited, timing.time, (unsigned long long)timing.fetched, (unsigned long long)timing.wasted);
  EXPECT_EQ(timing.asked_in_hbm, 0u);
  EXPECT_EQ(timing.asked_in_flight, 0u);
  return timing;
}

// The link is faster than the work, and 8 pages ahead cover the latency: no use waits after the
// first pages.
constexpr Machine kFastLink{.frames = 64, .work_time = 2, .transfer_time = 1, .latency = 8, .warm_up = 8};

TEST(Prefetch, ScansNeverWaitWhenTheLinkKeepsUp) {
  EXPECT_EQ(run(cyclic_scan(1000, 1), kFastLink).waits, 0u);
  EXPECT_EQ(run(backward_scan(1000, 1), kFastLink).waits, 0u);
  Machine two_scans = kFastLink;
  two_scans.warm_up = 16;
  EXPECT_EQ(run(lockstep_scans(500, 1), two_scans).waits, 0u);
}

// A network brings as many pages in a time, each after a longer latency: 8 pages ahead are too few.
TEST(Prefetch, DistantPagesAreFetchedFarEnoughAheadToFillTheLink) {
  Machine near{.frames = 256, .work_time = 0.5, .transfer_time = 1, .latency = 24, .in_flight_max = 64};
  Machine distant = near;
  distant.distant = true;
  const double few = run(cyclic_scan(2000, 1), near).time;
  EXPECT_LT(run(cyclic_scan(2000, 1), distant).time, 1.05 * 2000);
  EXPECT_GT(few, 2.0 * 2000);
  EXPECT_EQ(run(cyclic_scan(2000, 1), distant, 0).prefetched, 0u);
}

TEST(Prefetch, WrapsOnceACycleHasBeenSeen) {
  Machine machine = kFastLink;
  // The first turn is new to the policy; after it, pages are known to return.
  machine.warm_up = 2 * 256;
  EXPECT_EQ(run(cyclic_scan(256, 10), machine).waits, 0u);
  EXPECT_EQ(run(backward_scan(256, 10), machine).waits, 0u);
}

TEST(Prefetch, FollowsColumnsOfAStridedScan) {
  Machine machine = kFastLink;
  machine.warm_up = 3 * 16;  // each column has 16 pages; the second predicts the third
  EXPECT_EQ(run(strided_scan(256, 16, 1), machine).waits, 0u);
}

TEST(Prefetch, FollowsRevisitedRows) {
  Machine machine = kFastLink;
  machine.warm_up = 64;
  const Timing with = run(revisited_rows(512, 8, 4, 1), machine);
  const Timing without = run(revisited_rows(512, 8, 4, 1), machine, 0);
  EXPECT_LT(with.waited, without.waited / 4);
}

TEST(Prefetch, FillsTheLinkWhenTheLinkIsTheLimit) {
  const Machine machine{.frames = 64, .work_time = 0.1, .transfer_time = 1, .latency = 4, .busy_pages = 4};
  const Timing timing = run(cyclic_scan(256, 10), machine);
  // Pages that cannot be kept cross the link in each cycle.
  EXPECT_LT(timing.time, 1.1 * 10 * (256 - 64 + 8));
  EXPECT_EQ(timing.wasted, 0u);
}

TEST(Prefetch, KeepsTheShareOfACyclicScan) {
  const Timing timing = run(cyclic_scan(256, 20), kFastLink);
  // Frames of pages in flight cannot keep others: 8 ahead, 3 busy, and one in between.
  EXPECT_LE(timing.fetched, 256u + 19u * (256 - 64 + 8 + 3 + 1) + 8u);
  EXPECT_EQ(timing.wasted, 0u);
}

// Computing takes as long as the link needs for the absent pages. While the program uses resident
// pages, the link must load the absent ones that follow.
TEST(Prefetch, TheLinkWorksWhileTheProgramIsAtWhatIsThere) {
  constexpr std::uint32_t kPages = 460, kWarm = 5, kCycles = 10;
  for (const double transfer_time : {1.2, 2.25, 5.6}) {
    const Machine machine{
        .frames = 256, .work_time = 1, .transfer_time = transfer_time, .latency = 1, .in_flight_max = 4};
    const double warm_up = run(cyclic_scan(kPages, kWarm), machine).time;
    const double cycle = (run(cyclic_scan(kPages, kWarm + kCycles), machine).time - warm_up) / kCycles;
    EXPECT_LT(cycle, 1.17 * std::max(1.0 * kPages, (kPages - machine.frames) * transfer_time)) << transfer_time;
  }
}

TEST(Prefetch, AsksAgainForWhatWasDropped) {
  Machine machine = kFastLink;
  // A loss shows a latency and two pages after the request: 8 pages ahead leave time for a retry.
  machine.latency = 2;
  machine.drop_every = 5;
  EXPECT_LE(run(cyclic_scan(1000, 1), machine).waits, 2u);
}

TEST(Prefetch, RandomUsesFetchNothingAhead) {
  Machine machine = kFastLink;
  const Timing timing = run(uniform(2000, 5000, 3), machine);
  EXPECT_LT(timing.prefetched, 25u);
}

TEST(Prefetch, SmallBudgetsAreNotFlooded) {
  Machine machine = kFastLink;
  machine.frames = 8;
  EXPECT_EQ(run(cyclic_scan(200, 2), machine, 64).wasted, 0u);
}

std::vector<std::uint32_t> ask(Policy& policy, std::uint64_t room_pages = 100, int device = 0) {
  std::vector<PageId> pages(100);
  pages.resize(policy.prefetches({.device = device, .bytes_room = room_pages * kPageBytes}, pages));
  std::vector<std::uint32_t> indices;
  for (const PageId page : pages) indices.push_back(page.index);
  return indices;
}

std::unique_ptr<Policy> policy_with_region(std::uint32_t prefetch_pages = 4) {
  auto policy = make_second_chance_policy({.prefetch_pages = prefetch_pages, .hbm_bytes = {64 * kPageBytes}});
  policy->region_begins({.id = {1}, .pages = 100, .page_bytes = kPageBytes});
  return policy;
}

using Indices = std::vector<std::uint32_t>;

TEST(Prefetch, OneStepFromTheStartOfANewRegionIsEnough) {
  const auto policy = policy_with_region();
  policy->used({.region = {1}, .first = 0, .count = 1});
  EXPECT_EQ(ask(*policy), Indices{});
  policy->used({.region = {1}, .first = 1, .count = 1});
  EXPECT_EQ(ask(*policy), (Indices{2, 3, 4, 5}));
  EXPECT_EQ(ask(*policy), Indices{});  // already requested
}

TEST(Prefetch, ElsewhereTwoStepsAreNeeded) {
  const auto policy = policy_with_region();
  policy->used({.region = {1}, .first = 50, .count = 1});
  policy->used({.region = {1}, .first = 49, .count = 1});
  EXPECT_EQ(ask(*policy), Indices{});
  policy->used({.region = {1}, .first = 48, .count = 1});
  EXPECT_EQ(ask(*policy), (Indices{47, 46, 45, 44}));
}

TEST(Prefetch, AWholeRegionAtOnceIsNoScan) {
  const auto policy = policy_with_region();
  for (int i = 0; i < 5; ++i) policy->used({.region = {1}, .first = 0, .count = 100});
  EXPECT_EQ(ask(*policy), Indices{});
}

TEST(Prefetch, RunsAreStepsToo) {
  const auto policy = policy_with_region();
  policy->used({.region = {1}, .first = 0, .count = 3});
  policy->used({.region = {1}, .first = 3, .count = 3});
  EXPECT_EQ(ask(*policy), (Indices{6, 7, 8, 9}));
}

TEST(Prefetch, LittleRoomIsSharedAndTheRestFollows) {
  const auto policy = policy_with_region();
  policy->region_begins({.id = {2}, .pages = 100, .page_bytes = kPageBytes});
  for (std::uint32_t page = 0; page < 2; ++page)
    for (std::uint32_t region = 1; region <= 2; ++region) policy->used({.region = {region}, .first = page, .count = 1});
  EXPECT_EQ(ask(*policy, 4), (Indices{2, 2, 3, 3}));
  EXPECT_EQ(ask(*policy, 100), (Indices{4, 4, 5, 5}));
}

TEST(Prefetch, PagesThatPreferTheHostAreNotFetched) {
  const auto policy = policy_with_region();
  policy->page_prefers({{1}, 3}, Preference::prefer_host);
  for (std::uint32_t page = 0; page < 2; ++page) policy->used({.region = {1}, .first = page, .count = 1});
  const Indices asked = ask(*policy);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), 3u), 0);
}

TEST(Prefetch, StreamsAreFollowedApart) {
  const auto policy = policy_with_region(2);
  for (std::uint32_t i = 0; i < 3; ++i) {
    policy->used({.region = {1}, .first = 10 + i, .count = 1, .stream = 1});
    policy->used({.region = {1}, .first = 60 - i, .count = 1, .stream = 2});
  }
  Indices asked = ask(*policy);
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(asked, (Indices{13, 14, 56, 57}));
}

}  // namespace
}  // namespace vmem::migration::testing
