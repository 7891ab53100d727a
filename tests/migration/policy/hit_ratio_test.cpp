// Hit ratios against classic algorithms and Belady's optimum, which knows the future. Prints a
// table.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "migration/policy/cache_simulator.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint32_t kFrames = 256;

struct Hits {
  double policy, policy_after, lru, clock, belady;  // fractions of all references
};

std::uint64_t second_chance_hits(const Trace& trace, std::uint32_t frames, Report report) {
  const auto policy = make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {frames * kPageBytes}});
  return policy_hits(*policy, trace, frames, report);
}

Hits measure(const Trace& trace, std::uint32_t frames, const char* note = "") {
  const double length = double(trace.references.size());
  const Hits hits{double(second_chance_hits(trace, frames, Report::before_arrival)) / length,
                  double(second_chance_hits(trace, frames, Report::after_arrival)) / length,
                  double(lru_hits(trace, frames)) / length, double(clock_hits(trace, frames)) / length,
                  double(belady_hits(trace, frames)) / length};
  std::printf("| %-26s %-5s | %5u | %6.4f | %6.4f | %6.4f | %6.4f | %6.4f | %5.3f |\n", trace.name.c_str(), note,
              frames, hits.lru, hits.clock, hits.policy, hits.policy_after, hits.belady,
              hits.belady > 0 ? hits.policy / hits.belady : 1);
  return hits;
}

void expect_share_of_belady(const Hits& hits, double share) {
  EXPECT_GE(hits.policy, share * hits.belady);
  EXPECT_GE(hits.policy_after, share * hits.belady);
}

class HitRatio : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::printf("| trace                            | frames | LRU    | clock  | policy | (late) | Belady | share |\n");
  }
};

TEST_F(HitRatio, CyclicScansKeepTheirShare) {
  expect_share_of_belady(measure(cyclic_scan(2 * kFrames, 20), kFrames, "2x"), 0.95);
  expect_share_of_belady(measure(cyclic_scan(4 * kFrames, 20), kFrames, "4x"), 0.95);
  expect_share_of_belady(measure(cyclic_scan(64 * kFrames, 10), kFrames, "64x"), 0.95);
  expect_share_of_belady(measure(cyclic_scan(kFrames * 5 / 4, 40), kFrames, "1.25x"), 0.95);
  expect_share_of_belady(measure(cyclic_scan(4 * 16, 40), 16, "4x"), 0.9);
}

TEST_F(HitRatio, BackwardAndStridedScansToo) {
  expect_share_of_belady(measure(backward_scan(4 * kFrames, 20), kFrames, "4x"), 0.95);
  expect_share_of_belady(measure(strided_scan(4 * kFrames, 32, 20), kFrames, "4x"), 0.95);
}

TEST_F(HitRatio, ScansInLockStep) {
  expect_share_of_belady(measure(lockstep_scans(2 * kFrames, 20), kFrames, "4x"), 0.95);
}

TEST_F(HitRatio, LayersOfANetwork) {
  expect_share_of_belady(measure(layers(64, 16, 20, false), kFrames, "4x"), 0.95);
  expect_share_of_belady(measure(layers(64, 16, 20, true), kFrames, "4x"), 0.8);
}

TEST_F(HitRatio, HotSetSurvivesScans) {
  expect_share_of_belady(measure(scan_with_hot_set(4 * kFrames, kFrames / 32, 10), kFrames, "hot/32"), 0.95);
  expect_share_of_belady(measure(scan_with_hot_set(4 * kFrames, kFrames / 4, 10), kFrames, "hot/4"), 0.95);
  expect_share_of_belady(measure(scan_with_hot_set(4 * kFrames, kFrames * 3 / 4, 10), kFrames, "hot*.75"), 0.95);
  expect_share_of_belady(measure(one_time_scan(32 * kFrames, kFrames * 3 / 4), kFrames), 0.95);
}

TEST_F(HitRatio, RevisitedRowsAreNotHurt) {
  expect_share_of_belady(measure(revisited_rows(4 * kFrames, 1, 4, 10), kFrames, "1x4"), 0.95);
  expect_share_of_belady(measure(revisited_rows(4 * kFrames, 8, 4, 10), kFrames, "8x4"), 0.95);
  expect_share_of_belady(measure(revisited_rows(4 * kFrames, 24, 8, 10), kFrames, "24x8"), 0.95);
}

TEST_F(HitRatio, RandomIsNoWorseThanClock) {
  for (const char* exponent : {"0.7", "0.9", "1.1"}) {
    const Hits hits = measure(zipf(8 * kFrames, std::atof(exponent), 200'000, 7), kFrames, exponent);
    EXPECT_GE(hits.policy, hits.clock);
    EXPECT_GE(hits.policy_after, hits.clock);
  }
  const Hits hits = measure(uniform(4 * kFrames, 100'000, 7), kFrames);
  EXPECT_GE(hits.policy, 0.97 * hits.clock);
}

TEST_F(HitRatio, MatmulTiles) {
  const auto expect_good = [](const Hits& hits) {
    EXPECT_GE(hits.policy, hits.lru);
    expect_share_of_belady(hits, 0.85);
  };
  expect_good(measure(matmul(16, 3), kFrames, "3x"));
  expect_good(measure(matmul(24, 2), kFrames, "6.7x"));
}

TEST_F(HitRatio, PhasesChange) {
  expect_share_of_belady(measure(phases(2 * kFrames, 20, 4), kFrames, "2x"), 0.85);
  expect_share_of_belady(measure(phases(kFrames * 3 / 4, 20, 4), kFrames, ".75x"), 0.85);
}

}  // namespace
}  // namespace vmem::migration::testing
