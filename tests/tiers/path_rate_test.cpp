#include "tiers/disk/path_rate.hpp"

#include <gtest/gtest.h>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kMs = 1'000'000;

// Requests of 1 MiB, `depth` at a time, each ending `each_ns` after the one before.
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

TEST(PathRate, BetterIsBelievedAtOnceAndWorseByAndBy) {
  PathRate rate;
  std::uint64_t now_ns = 0;
  run(rate, now_ns, 32, 8, 2 * kMs);
  run(rate, now_ns, 48, 8, kMs);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 1000, 10.0 * double(kMiB));
  const std::uint64_t seen = rate.measurements();
  run(rate, now_ns, 20, 8, 4 * kMs);
  EXPECT_EQ(rate.measurements(), seen + 1);
  EXPECT_GT(rate.bytes_s(), double(kMiB) * 700);
  run(rate, now_ns, 400, 8, 4 * kMs);
  EXPECT_NEAR(rate.bytes_s(), double(kMiB) * 250, 10.0 * double(kMiB));
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
