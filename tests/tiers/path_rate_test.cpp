#include "tiers/disk/path_rate.hpp"

#include <gtest/gtest.h>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMs = 1'000'000;

// Requests of 1 MiB, `depth` in flight, each ending `each_ns` after the one before.
void run(PathRate& rate, std::uint64_t& now_ns, std::uint64_t requests, std::uint64_t depth, std::uint64_t each_ns) {
  for (std::uint64_t i = 0; i < depth; ++i) rate.begins(kMiB, now_ns);
  for (std::uint64_t i = 0; i < requests; ++i) {
    now_ns += each_ns;
    rate.ends(kMiB, kMiB, now_ns);
    if (i + depth < requests) rate.begins(kMiB, now_ns);
  }
}

TEST(PathRate, ABusyPathIsMeasured) {
  PathRate rate;
  std::uint64_t now_ns = 5 * kMs;
  EXPECT_EQ(rate.bytes_s(), 0);
  run(rate, now_ns, 64, 8, kMs);
  EXPECT_GE(rate.measurements(), 1u);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 1000, double(kMiB));
}

TEST(PathRate, APathWithLittleToDoIsNotTakenToBeSlow) {
  PathRate rate;
  std::uint64_t now_ns = 0;
  run(rate, now_ns, 1000, 1, 10 * kMs);
  EXPECT_EQ(rate.bytes_s(), 0) << "nobody knows what it could do";
  run(rate, now_ns, 64, 8, kMs);
  now_ns += 1000 * kMs;  // idle
  const double before = rate.bytes_s();
  run(rate, now_ns, 64, 8, kMs);
  EXPECT_NEAR(rate.bytes_s(), before, before / 100);
}

TEST(PathRate, AChangeIsBelievedByAndBy) {
  PathRate rate;
  std::uint64_t now_ns = 0;
  run(rate, now_ns, 400, 16, kMs);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 1000, 20.0 * double(kMiB));
  run(rate, now_ns, 400, 16, 4 * kMs);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 250, 20.0 * double(kMiB));
  run(rate, now_ns, 400, 16, kMs);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 1000, 50.0 * double(kMiB));
}

TEST(PathRate, AFastMomentIsNotTheRate) {
  PathRate rate;
  std::uint64_t now_ns = 0;
  for (int round = 0; round < 20; ++round) {
    run(rate, now_ns, 40, 16, kMs / 20);
    run(rate, now_ns, 160, 16, kMs);
  }
  // 200 MiB in 162 ms, repeatedly.
  EXPECT_GT(rate.bytes_s(), double(kMiB) * 900);
  EXPECT_LT(rate.bytes_s(), double(kMiB) * 1600);
}

// Virtual disks report requests in batches, long after each ended.
TEST(PathRate, WhatEndsTogetherWasWaitedForTogether) {
  constexpr std::uint64_t kBatch = 64;
  PathRate rate;
  std::uint64_t now_ns = 5 * kMs;
  for (int batch = 0; batch < 20; ++batch) {
    for (std::uint64_t i = 0; i < kBatch; ++i) rate.begins(kMiB, now_ns);
    now_ns += 20 * kMs;
    for (std::uint64_t i = 0; i < kBatch; ++i) rate.ends(kMiB, kMiB, now_ns);
    if (batch == 0) continue;
    EXPECT_EQ(rate.measurements(), std::uint64_t(batch));
    EXPECT_NEAR(rate.bytes_s(), double(kBatch * kMiB) / 0.02, double(kMiB));
  }
}

TEST(PathRate, RequestsThatMovedNothingCountNothing) {
  PathRate rate;
  std::uint64_t now_ns = 0;
  for (int i = 0; i < 64; ++i) rate.begins(kMiB, now_ns);
  for (int i = 0; i < 64; ++i) rate.ends(kMiB, 0, now_ns += kMs);
  EXPECT_EQ(rate.measurements(), 0u);
}

}  // namespace
}  // namespace vmem::tiers
