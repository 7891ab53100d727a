// Plans: replays of a trace's steady part, for several sizes of HBM.
#include "replay/plan.hpp"

#include <gtest/gtest.h>

#include <string>

#include "replay/recording.hpp"

namespace vmem::replay {
namespace {

constexpr std::uint32_t kLayers = 16;

trace::Trace some_training() {
  std::uint64_t from_ns = 0;
  return training(kLayers, 9, from_ns);
}

Plan planned(const trace::Trace& trace, const PlanRequest& request) {
  auto made = plan(trace, request);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *std::move(made) : Plan();
}

TEST(Plan, FindsTheStepAndItsPeak) {
  const Plan made = planned(some_training(), {});
  EXPECT_EQ(made.steady.periods, 2u);
  EXPECT_EQ(made.steady.launches, 3 * kLayers);
  EXPECT_EQ(made.steady.peak_bytes, 2 * kLayers * 32 * kMiB);
  EXPECT_EQ(made.largest_launch_bytes, 64 * kMiB);
  EXPECT_EQ(made.fits.in_bytes, 0u);
  EXPECT_EQ(limit_of(made.fits), "computing");
  EXPECT_GT(busiest_part(made.fits), 0.9);
}

TEST(Plan, HasARowForEachSizeFromMuchToLittle) {
  const Plan made = planned(some_training(), {});
  ASSERT_EQ(made.rows.size(), std::size(kOverflows));
  for (std::size_t i = 0; i < made.rows.size(); ++i) {
    const PlanRow& row = made.rows[i];
    EXPECT_GE(row.measured.time_ns, row.bound.time_ns);
    EXPECT_GE(row.schedule.time_ns, row.bound.time_ns);
    EXPECT_GE(row.measured.in_bytes, row.bound.moved.in_bytes);
    if (i > 0) {
      EXPECT_LT(row.hbm_bytes, made.rows[i - 1].hbm_bytes);
      EXPECT_GT(row.measured.in_bytes, made.rows[i - 1].measured.in_bytes);
    }
  }
  const Plan asked = planned(some_training(), {.hbm_bytes = {256 * kMiB, 512 * kMiB}});
  ASSERT_EQ(asked.rows.size(), 2u);
  EXPECT_EQ(asked.rows[0].hbm_bytes, 512 * kMiB);
}

TEST(Plan, ASlowLinkIsWhatLimits) {
  PlanRequest request{.hbm_bytes = {512 * kMiB}};
  request.chain.link.in_bytes_per_s = 5'000'000'000;
  const Plan slow = planned(some_training(), request);
  EXPECT_EQ(limit_of(slow.rows[0].measured), "link in");
  request.chain.link.in_bytes_per_s = 500'000'000'000;
  const Plan fast = planned(some_training(), request);
  EXPECT_LT(fast.rows[0].measured.time_ns, slow.rows[0].measured.time_ns);
}

TEST(Plan, WhatHostMemoryCannotHoldGoesBelowAndComesBackRight) {
  PlanRequest request{.hbm_bytes = {256 * kMiB}};
  const Plan all = planned(some_training(), request);
  request.chain.host_bytes = 512 * kMiB;
  request.chain.below_bytes = 4096 * kMiB;
  const Plan chained = planned(some_training(), request);
  const Measured& measured = chained.rows[0].measured;
  EXPECT_GT(measured.below_in_bytes, 0u);
  EXPECT_GT(measured.below_out_bytes, 0u);
  EXPECT_EQ(measured.wrong_loads, 0u);
  EXPECT_EQ(limit_of(measured).substr(0, 5), "below");
  EXPECT_GT(measured.time_ns, all.rows[0].measured.time_ns);
  EXPECT_GT(chained.rows[0].bound.time_ns, all.rows[0].bound.time_ns);
  EXPECT_GE(measured.time_ns, chained.rows[0].bound.time_ns);
  request.chain.below_in_bytes_per_s *= 2;
  request.chain.below_out_bytes_per_s *= 2;
  EXPECT_LT(planned(some_training(), request).rows[0].measured.time_ns, measured.time_ns);
}

TEST(Plan, APeersMemoryIsFasterThanTheHosts) {
  PlanRequest request{.hbm_bytes = {256 * kMiB}};
  const Plan host = planned(some_training(), request);
  request.chain.peer_bytes = 4096 * kMiB;
  const Plan peer = planned(some_training(), request);
  const Measured& measured = peer.rows[0].measured;
  EXPECT_LT(measured.time_ns, host.rows[0].measured.time_ns);
  EXPECT_EQ(measured.in_busy_ns + measured.out_busy_ns, 0u) << "host memory is the next tier";
  EXPECT_GT(measured.peer_in_busy_ns, 0u);
  EXPECT_EQ(measured.wrong_loads, 0u);
  EXPECT_GE(measured.time_ns, peer.rows[0].bound.time_ns);
  EXPECT_LE(peer.rows[0].bound.time_ns, host.rows[0].bound.time_ns);
}

TEST(Plan, SaysWhenAllTiersTogetherAreTooSmall) {
  PlanRequest request{.hbm_bytes = {256 * kMiB}};
  request.chain.host_bytes = 256 * kMiB;
  const auto made = plan(some_training(), request);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(made.error().message.find("256 MiB of host memory"), std::string::npos) << made.error().message;
}

TEST(Plan, WhereHostMemoryIsSmallWhatDoesNotGoIsLeftOut) {
  PlanRequest request{.hbm_bytes = {}, .within = 0.5};
  request.chain.host_bytes = 512 * kMiB;
  const Plan made = planned(some_training(), request);
  EXPECT_GT(made.rows.size(), 0u);
  EXPECT_LT(made.rows.size(), std::size(kOverflows));
  ASSERT_TRUE(made.smallest_hbm_bytes);
  request.hbm_bytes = {*made.smallest_hbm_bytes};
  EXPECT_EQ(planned(some_training(), request).rows.size(), 1u);
}

TEST(Plan, FindsTheLeastHbmThatIsFastEnough) {
  const trace::Trace trace = some_training();
  const auto least = [&](double within) { return *planned(trace, {.within = within}).smallest_hbm_bytes; };
  const std::uint64_t strict = least(0.01), loose = least(0.5);
  EXPECT_LT(loose, strict);
  EXPECT_LE(strict, 2 * kLayers * 32 * kMiB);
  const Plan there = planned(trace, {.hbm_bytes = {loose}});
  EXPECT_LE(double(there.rows[0].measured.time_ns), double(there.fits.time_ns) * 1.5);
  EXPECT_FALSE(planned(trace, {}).smallest_hbm_bytes);
}

TEST(Plan, SaysWhatItCannotDo) {
  const auto refused = [](const trace::Trace& trace, const PlanRequest& request) {
    const auto made = plan(trace, request);
    return made ? std::string() : made.error().message;
  };
  EXPECT_NE(refused(trace::Trace{}, {}).find("no launches in the trace"), std::string::npos);
  Recording recording;
  const trace::Block large = recording.begin(600);
  for (int i = 0; i < 30; ++i) recording.launch({large}, kMs);
  EXPECT_NE(refused(recording.take(), {.hbm_bytes = {512 * kMiB}}).find("512 MiB of HBM is too little"),
            std::string::npos);
  Recording slabs;
  (void)slabs.begin(100, trace::BlockKind::slab);
  const trace::Block block = slabs.begin(20);
  for (int i = 0; i < 30; ++i) slabs.launch({block}, kMs);
  const trace::Trace small = slabs.take();
  EXPECT_NE(refused(small, {.hbm_bytes = {32 * kMiB}}).find("need 44 MiB"), std::string::npos);
  EXPECT_TRUE(plan(small, {.hbm_bytes = {44 * kMiB}, .within = 0.1}));
}

}  // namespace
}  // namespace vmem::replay
