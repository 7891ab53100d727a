// Programs played in virtual time: against what any runtime has to move, what a schedule that knows
// the future takes, and the runtime's own books.
#include "replay/replay.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "replay/recording.hpp"
#include "trace/bound.hpp"
#include "trace/program.hpp"
#include "trace/schedule.hpp"

namespace vmem::replay {
namespace {

Measured played(const trace::Trace& trace, const Setting& setting) {
  const auto measured = replay(trace, setting);
  EXPECT_TRUE(measured) << measured.error().message;
  if (!measured) return {};
  EXPECT_EQ(measured->wrong_loads, 0u) << "pages came back with old contents";
  return *measured;
}

std::string refused(const trace::Trace& trace, const Setting& setting) {
  const auto measured = replay(trace, setting);
  EXPECT_FALSE(measured);
  return measured ? "" : measured.error().message;
}

TEST(Replay, AProgramThatFitsTakesWhatItsGpuTakes) {
  std::uint64_t from_ns = 0;
  const trace::Trace trace = training(16, 6, from_ns);
  const Measured measured = played(trace, {.hbm_bytes = 4096 * kMiB, .from_ns = from_ns});
  EXPECT_EQ(measured.in_bytes, 0u);
  EXPECT_EQ(measured.out_bytes, 0u);
  EXPECT_EQ(measured.waits, 0u);
  EXPECT_GE(measured.time_ns, measured.gpu_ns);
  EXPECT_LT(double(measured.time_ns), double(measured.gpu_ns) * 1.05);
}

struct ReplayAtHalf : ::testing::TestWithParam<double> {};

// Any decision of the policy that costs more than it does now fails here.
TEST_P(ReplayAtHalf, IsNearTheScheduleAndNotBelowTheBound) {
  std::uint64_t from_ns = 0;
  constexpr std::uint32_t kLayers = 32;
  const trace::Trace trace = training(kLayers, 8, from_ns);
  const auto hbm = std::uint64_t(double(2 * kLayers * 32 * kMiB) / GetParam()) / kMiB * kMiB;
  const Measured measured =
      played(trace, {.hbm_bytes = hbm, .pinned_bytes_per_s = 1'000'000'000'000, .from_ns = from_ns});
  const trace::Program program = extract(trace, {.from_ns = from_ns});
  const trace::Machine machine{.hbm_bytes = hbm, .in_bytes_per_s = 55.3e9, .out_bytes_per_s = 55.3e9};
  const trace::Bound bound = trace::bound(program, machine);
  const trace::Schedule schedule = trace::schedule(program, machine, trace::Writes::all);
  const auto ms = [](std::uint64_t ns) { return double(ns) / 1e6; };
  std::printf(
      "1/%.2f: %.1f ms, bound %.1f, schedule %.1f; in %.2f of %.2f GiB, ahead %.2f; %llu maps, %llu frames made\n",
      GetParam(), ms(measured.time_ns), ms(bound.time_ns), ms(schedule.time_ns), double(measured.in_bytes) / 0x1p30,
      double(bound.moved.in_bytes) / 0x1p30, double(measured.ahead_bytes) / 0x1p30,
      static_cast<unsigned long long>(measured.maps), static_cast<unsigned long long>(measured.frames_made));
  EXPECT_GE(measured.time_ns, bound.time_ns);
  EXPECT_LT(double(measured.time_ns), double(schedule.time_ns) * 1.25);
  EXPECT_LT(double(measured.in_bytes), double(bound.moved.in_bytes) * 1.45);
  EXPECT_EQ(measured.frames_made, 0u);
}

INSTANTIATE_TEST_SUITE_P(Budgets, ReplayAtHalf, ::testing::Values(1.25, 1.5, 2.0, 3.0, 4.0));

TEST(Replay, TakesTheSameTimeEveryTime) {
  std::uint64_t from_ns = 0;
  const trace::Trace trace = training(16, 5, from_ns);
  const Setting setting{.hbm_bytes = 512 * kMiB, .from_ns = from_ns};
  const Measured first = played(trace, setting), second = played(trace, setting);
  EXPECT_EQ(first.time_ns, second.time_ns);
  EXPECT_EQ(first.in_bytes, second.in_bytes);
  EXPECT_EQ(first.maps, second.maps);
  EXPECT_GT(first.in_bytes, 0u);
}

TEST(Replay, ASlowerLinkTakesLonger) {
  std::uint64_t from_ns = 0;
  const trace::Trace trace = training(16, 5, from_ns);
  Setting setting{.hbm_bytes = 512 * kMiB, .from_ns = from_ns};
  const Measured fast = played(trace, setting);
  setting.chain.link.in_bytes_per_s = setting.chain.link.out_bytes_per_s = 12'000'000'000;
  const Measured slow = played(trace, setting);
  EXPECT_GT(double(slow.time_ns), double(fast.time_ns) * 2);
}

// Two streams compute side by side, but not where one waits for the other.
TEST(Replay, StreamsWaitForEachOther) {
  const auto time_ns = [](bool waits) {
    Recording recording;
    const trace::Block first = recording.begin(8), second = recording.begin(8);
    for (std::uint32_t i = 0; i < 20; ++i) {
      recording.launch({first}, kMs, 1, 1);
      recording.signal(1, 7, false);
      if (waits) recording.signal(2, 7, true);
      recording.launch({second}, kMs, 1, 2);
      recording.signal(2, 8, false);
      if (waits) recording.signal(1, 8, true);
    }
    return double(played(recording.take(), {.hbm_bytes = 512 * kMiB}).time_ns) / 1e6;
  };
  EXPECT_LT(time_ns(false), 23);
  EXPECT_GE(time_ns(true), 40);
}

// What a stream queued after the record is not waited for.
TEST(Replay, AWaitIsForWhatTheEventCovers) {
  Recording recording;
  const trace::Block first = recording.begin(8), second = recording.begin(8);
  recording.signal(1, 7, false);
  for (int i = 0; i < 20; ++i) recording.launch({first}, kMs, 1, 1);
  recording.signal(2, 7, true);
  recording.signal(2, 9, true);  // never recorded
  for (int i = 0; i < 20; ++i) recording.launch({second}, kMs, 1, 2);
  EXPECT_LT(played(recording.take(), {.hbm_bytes = 512 * kMiB}).time_ns, 24 * kMs);
}

// A pause of the program counts up to 0.2 ms; a longer one is a wait for the GPU, if a copy came
// before.
TEST(Replay, PausesAreTheProgramsOwnUpToALimit) {
  const auto time_ns = [](std::uint32_t what) {
    Recording recording;
    recording.trace().names = {"", "a kernel", "a copy"};
    const trace::Block block = recording.begin(8);
    for (int i = 0; i < 10; ++i) {
      recording.launch({block}, kMs, what);
      recording.pause(10 * kMs);
    }
    return played(recording.take(), {.hbm_bytes = 512 * kMiB}).time_ns;
  };
  EXPECT_LT(time_ns(1), 12 * kMs) << "launches follow each other on the GPU";
  EXPECT_GE(time_ns(2), 10 * kMs);
  EXPECT_LT(time_ns(2), 13 * kMs);
}

// Whatever a program does, no page comes back with old contents, and no less moves than has to.
TEST(ReplayFuzz, RandomProgramsKeepTheirBytes) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return std::uint32_t(random() % n); };
    Recording recording;
    std::vector<trace::Block> live;
    std::uint64_t live_mib = 0;
    std::vector<std::uint64_t> mib_of(1);
    for (int i = 0; i < 1200; ++i) {
      if (live_mib < 700 && below(3) == 0) {
        const std::uint64_t mib = 2 + below(60);
        live.push_back(recording.begin(mib));
        mib_of.push_back(mib);
        live_mib += mib;
      }
      if (!live.empty() && below(5) == 0) {
        const std::size_t which = below(live.size());
        recording.end(live[which]);
        live_mib -= mib_of[live[which]];
        live.erase(live.begin() + std::ptrdiff_t(which));
      }
      if (live.empty()) continue;
      std::vector<trace::Block> named;
      for (std::uint32_t uses = 1 + below(3); uses > 0; --uses) named.push_back(live[below(live.size())]);
      recording.launch(named, below(400'000), 1 + below(2));
    }
    const trace::Trace trace = recording.take();
    const std::uint64_t hbm = (256 + 64 * below(5)) * kMiB;
    const Measured measured = played(trace, {.hbm_bytes = hbm, .pinned_bytes_per_s = 50'000'000'000});
    const trace::Program program = extract(trace, {});
    const auto least = trace::least_moved(program, 0, trace::Position(program.launches.size()), hbm);
    EXPECT_GE(measured.in_bytes, least.in_bytes);
    EXPECT_GE(measured.time_ns, measured.gpu_ns);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// Where uses cannot be foreseen, looking ahead costs nothing: it must not be a fiftieth worse than
// the policy behind it.
TEST(ReplayFuzz, OffItsPatternLookingAheadIsNoWorse) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    Recording recording;
    std::vector<trace::Block> blocks;
    for (int i = 0; i < 24; ++i) blocks.push_back(recording.begin(32));
    for (int i = 0; i < 2000; ++i) recording.launch({blocks[random() % blocks.size()]}, 50'000, 1 + random() % 2);
    const trace::Trace trace = recording.take();
    Setting setting{.hbm_bytes = 512 * kMiB, .pinned_bytes_per_s = 1'000'000'000'000};
    const Measured with = played(trace, setting);
    setting.look_ahead = false;
    const Measured without = played(trace, setting);
    EXPECT_LE(double(with.time_ns), double(without.time_ns) * 1.02) << "seed " << seed;
    EXPECT_LE(double(with.in_bytes), double(without.in_bytes) * 1.02) << "seed " << seed;
  }
}

// Decoding with a mixture of experts: each layer of each step uses a few of its experts, some far
// more often than others. What is used often has to stay: no more comes in than a tenth beyond the
// best fixed choice of what stays.
TEST(ReplayFuzz, WithSkewedRoutingWhatIsUsedOftenStays) {
  constexpr std::uint32_t kLayers = 8, kExperts = 16, kUsed = 2, kSteps = 300, kFrom = 100;
  constexpr std::uint64_t kMib = 8, kHbm = kLayers * kExperts * kMib / 2 * kMiB;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::mt19937_64 random(seed);
    Recording recording;
    std::vector<std::vector<trace::Block>> layers(kLayers);
    std::map<trace::Block, std::uint64_t> uses;
    for (auto& layer : layers) {
      for (std::uint32_t i = 0; i < kExperts; ++i) layer.push_back(recording.begin(kMib));
    }
    std::vector<double> weights;
    for (std::uint32_t i = 0; i < kExperts; ++i) weights.push_back(1.0 / (1 + i));
    std::discrete_distribution<std::size_t> expert(weights.begin(), weights.end());
    std::uint64_t from_ns = 0;
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      if (step == kFrom) from_ns = recording.now_ns();
      for (const auto& layer : layers) {
        for (std::uint32_t i = 0; i < kUsed; ++i) {
          const trace::Block block = layer[expert(random)];
          recording.launch({block}, 100'000);
          if (step >= kFrom) ++uses[block];
        }
      }
    }
    std::vector<std::uint64_t> counts;
    for (const auto& [block, count] : uses) counts.push_back(count);
    std::ranges::sort(counts, std::greater());
    std::uint64_t least = 0;
    for (std::size_t i = kHbm / (kMib * kMiB) - 2; i < counts.size(); ++i) least += counts[i] * kMib * kMiB;
    const Measured measured =
        played(recording.take(), {.hbm_bytes = kHbm, .pinned_bytes_per_s = 1'000'000'000'000, .from_ns = from_ns});
    std::printf("seed %llu: %.2f of the best fixed choice\n", static_cast<unsigned long long>(seed),
                double(measured.in_bytes) / double(least));
    EXPECT_LE(double(measured.in_bytes), double(least) * 1.4) << "seed " << seed;
  }
}

// Tables of which each step reads and writes some rows, with half of what they take.
TEST(Replay, TablesOfWhichRowsAreUsedEndUpInHostMemory) {
  Recording recording;
  std::vector<trace::Block> tables;
  for (int i = 0; i < 4; ++i) tables.push_back(recording.begin(512));
  const trace::Block rows = recording.begin(2);
  std::uint64_t from_ns = 0;
  for (int step = 0; step < 60; ++step) {
    if (step == 50) from_ns = recording.now_ns();
    for (const trace::Block table : tables) recording.launch({rows, table}, kMs, 5);
    for (const trace::Block table : tables) recording.launch({rows, table}, kMs, 6);
  }
  const trace::Trace trace = recording.take();
  Setting setting{.hbm_bytes = 1024 * kMiB, .from_ns = from_ns};
  const Measured tried = played(trace, setting);
  setting.try_in_place = false;
  const Measured moved = played(trace, setting);
  EXPECT_EQ(tried.in_bytes, 0u);
  EXPECT_GT(moved.in_bytes, 10 * 1024 * kMiB);
  EXPECT_LT(tried.time_ns, moved.time_ns / 3);
}

TEST(Replay, LookingAheadIsFasterWhereUsesRepeat) {
  std::uint64_t from_ns = 0;
  const trace::Trace trace = training(16, 9, from_ns);
  Setting setting{.hbm_bytes = 512 * kMiB, .pinned_bytes_per_s = 1'000'000'000'000, .from_ns = from_ns};
  const Measured with = played(trace, setting);
  setting.look_ahead = false;
  EXPECT_LT(with.time_ns, played(trace, setting).time_ns);
}

// Bytes out of a program that goes round 24 blocks of 32 MiB, by one kernel, in 512 MiB of HBM.
std::uint64_t out_bytes_of(std::uint32_t what) {
  Recording recording;
  std::vector<trace::Block> blocks;
  for (int i = 0; i < 24; ++i) {
    blocks.push_back(recording.begin(32));
    recording.launch({blocks.back()}, kMs);
  }
  std::uint64_t from_ns = 0;
  for (int step = 0; step < 16; ++step) {
    if (step == 12) from_ns = recording.now_ns();
    for (const trace::Block block : blocks) recording.launch({block}, kMs, what);
  }
  return played(recording.take(),
                {.hbm_bytes = 512 * kMiB, .pinned_bytes_per_s = 1'000'000'000'000, .from_ns = from_ns})
      .out_bytes;
}

TEST(Replay, WhatAKernelWritesIsToldByItsName) {
  const std::uint64_t reads = out_bytes_of(1), all = out_bytes_of(2), elementwise = out_bytes_of(3),
                      copies = out_bytes_of(4);
  EXPECT_LT(reads, 32 * kMiB);
  EXPECT_GT(all, 256 * kMiB);
  EXPECT_EQ(elementwise, all) << "nothing that it names is new, so it writes what it reads";
  EXPECT_GT(copies, reads);
  EXPECT_LT(copies, all / 4) << "a small copy writes a small part";
}

TEST(Replay, ATimelineSaysWhatWasBusyAndWhen) {
  std::uint64_t from_ns = 0;
  const trace::Trace trace = training(16, 6, from_ns);
  Timeline timeline;
  const Measured measured = played(trace, {.hbm_bytes = 512 * kMiB, .from_ns = from_ns, .timeline = &timeline});
  std::map<Track, std::uint64_t> busy;
  std::uint64_t first_ns = ~std::uint64_t{0}, last_ns = 0;
  for (const Work& work : timeline) {
    ASSERT_LT(work.begin_ns, work.end_ns);
    busy[work.track] += work.end_ns - work.begin_ns;
    first_ns = std::min(first_ns, work.begin_ns);
    last_ns = std::max(last_ns, work.end_ns);
  }
  EXPECT_NEAR(double(busy[Track::computing]), double(measured.gpu_ns), double(kMs));
  EXPECT_NEAR(double(busy[Track::link_in]), double(measured.in_busy_ns), double(kMs));
  EXPECT_NEAR(double(busy[Track::link_out]), double(measured.out_busy_ns), double(kMs));
  EXPECT_LE(last_ns - first_ns, measured.time_ns);
  EXPECT_GE(double(last_ns - first_ns), double(measured.time_ns) * 0.9);
}

TEST(Replay, SaysWhatItCannotPlay) {
  Recording two;
  two.trace().header.devices.push_back({"another", kMiB, 0, 0});
  EXPECT_NE(refused(two.take(), {.hbm_bytes = 512 * kMiB}).find("2 devices"), std::string::npos);
  for (const auto kind : {trace::BlockKind::file, trace::BlockKind::declared}) {
    Recording calls;
    calls.launch({calls.begin(64, kind)}, kMs);
    EXPECT_NE(refused(calls.take(), {.hbm_bytes = 512 * kMiB}).find("calls vmem itself"), std::string::npos);
  }
  Recording small;
  small.launch({small.begin(64)}, kMs);
  const trace::Trace trace = small.take();
  EXPECT_NE(refused(trace, {.hbm_bytes = 16 * kMiB}).find("32 MiB is the least"), std::string::npos);
  EXPECT_NE(refused(trace, {.hbm_bytes = 128 * kMiB, .page_bytes = 32 * kMiB}).find("more than an eighth"),
            std::string::npos);
  EXPECT_NE(refused(trace, {.hbm_bytes = 128 * kMiB, .from_ns = 1000 * kMs}).find("no launch comes after 1.000 s"),
            std::string::npos);
  EXPECT_NE(refused(trace::Trace{}, {.hbm_bytes = 128 * kMiB}).find("no launch comes after"), std::string::npos);
}

// Slabs that come and go take only as much HBM as lived at a time.
TEST(Replay, SlabsTakeWhatLivedAtATime) {
  Recording recording;
  for (int i = 0; i < 100; ++i) {
    const trace::Block slab = recording.begin(16, trace::BlockKind::slab);
    recording.launch({recording.begin(2)}, kMs);
    recording.end(slab);
  }
  EXPECT_GT(played(recording.take(), {.hbm_bytes = 512 * kMiB}).launches, 100u);
}

TEST(Replay, ALaunchLargerThanHbmUsesHostMemory) {
  Recording recording;
  std::vector<trace::Block> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(recording.begin(32));
  for (int i = 0; i < 6; ++i) recording.launch(blocks, kMs);
  const trace::Trace trace = recording.take();
  const Measured fits = played(trace, {.hbm_bytes = 1024 * kMiB});
  const Measured large = played(trace, {.hbm_bytes = 256 * kMiB, .pinned_bytes_per_s = 50'000'000'000});
  EXPECT_GT(large.gpu_ns, fits.gpu_ns) << "the GPU reads over the link";
}

TEST(Replay, PagesOfItsOwnForEachBlockCostMoreMaps) {
  std::uint64_t from_ns = 0;
  Recording recording;
  std::vector<trace::Block> blocks;
  for (int i = 0; i < 512; ++i) blocks.push_back(recording.begin(2));
  for (int step = 0; step < 6; ++step) {
    if (step == 4) from_ns = recording.now_ns();
    for (const trace::Block block : blocks) recording.launch({block}, kMs / 10);
  }
  const trace::Trace trace = recording.take();
  Setting setting{.hbm_bytes = 512 * kMiB, .pinned_bytes_per_s = 1'000'000'000'000, .from_ns = from_ns};
  const Measured shared = played(trace, setting);
  setting.share_pages = false;
  EXPECT_GT(played(trace, setting).maps, shared.maps);
}

}  // namespace
}  // namespace vmem::replay
