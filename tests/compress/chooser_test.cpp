#include "compress/chooser.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "compress/pages.hpp"
#include "compress/registry.hpp"

namespace vmem::compress {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{32} << 20;

const Codec* codec(std::string_view name) { return parse_setting(name)->codec; }

// A disk of 2 GB/s, and enough workers.
Conditions disk() {
  return {.page_bytes = kPage, .write_bytes_s = 2e9, .read_bytes_s = 3e9, .compressors = 8, .decompressors = 8};
}

class ChooserTest : public ::testing::Test {
 protected:
  Chooser chooser{std::vector<Candidate>{{codec("lz4"), {1e9, 4e9}}, {codec("zstd-3"), {0.3e9, 1e9}}}};

  // Results of codecs on samples of 1,000,000 bytes, where codecs are expected to be slower than on
  // pages.
  static Sample sample(std::initializer_list<Trial> trials) {
    Sample made{.bytes = 1'000'000, .seconds = 0, .trials = {}};
    for (Trial trial : trials) made.trials.push_back(trial);
    return made;
  }
  static Trial trial(std::string_view name, double fraction, double compress_bytes_s, double decompress_bytes_s) {
    return {codec(name), fraction, 1e6 / compress_bytes_s * Estimate::kColdStart, 1e6 / decompress_bytes_s};
  }
  Decision after(const Conditions& now, std::initializer_list<Trial> trials) {
    chooser.observe(now, sample(trials));
    return chooser.decide(now);
  }
  void stored(std::string_view name, double fraction, int pages) {
    for (int i = 0; i < pages; ++i) {
      chooser.observe(Stored{codec(name), kPage, std::uint64_t(double(kPage) * fraction), double(kPage) / 1e9});
    }
  }
  bool compresses(const Conditions& now) { return chooser.decide(now).codec != nullptr; }
  int pages_until_sample(const Conditions& now) {
    int pages = 0;
    while (chooser.plan_sample(now).codecs.empty()) {
      (void)chooser.decide(now);
      if (++pages == 10'000) break;
    }
    return pages;
  }
};

TEST_F(ChooserTest, NothingIsCompressedBeforeItWasTried) {
  const Decision decision = chooser.decide(disk());
  EXPECT_EQ(decision.codec, nullptr);
  EXPECT_EQ(decision.why, Why::nothing_known);
  EXPECT_EQ(decision.out_bytes, kPage);
}

TEST_F(ChooserTest, WhatHalvesIsCompressedWhenWorkersKeepUp) {
  const Decision decision = after(disk(), {trial("lz4", 0.5, 1e9, 4e9)});
  ASSERT_EQ(decision.codec, codec("lz4"));
  EXPECT_EQ(decision.why, Why::faster);
  EXPECT_DOUBLE_EQ(decision.write_gain, 2);
  EXPECT_DOUBLE_EQ(decision.read_gain, 2);
  EXPECT_EQ(decision.out_bytes, kPage / 32 * 31);
}

TEST_F(ChooserTest, TheGainIsThatOfTheSlowerPart) {
  Conditions now = disk();
  now.compressors = 3;
  EXPECT_DOUBLE_EQ(after(now, {trial("lz4", 0.5, 1e9, 4e9)}).write_gain, 1.5);
}

TEST_F(ChooserTest, TooFewWorkersLeaveThePageAsItIs) {
  Conditions now = disk();
  now.compressors = 2;
  EXPECT_EQ(after(now, {trial("lz4", 0.1, 1e9, 4e9)}).why, Why::no_gain);
}

TEST_F(ChooserTest, WhatCannotBeReadBackAsFastIsNotWritten) {
  Conditions now = disk();
  now.decompressors = 1;
  EXPECT_EQ(after(now, {trial("zstd-3", 0.3, 1e9, 3.3e9)}).codec, nullptr) << "3.3 GB/s are too near to 3";
  now.decompressors = 2;
  EXPECT_EQ(chooser.decide(now).codec, codec("zstd-3"));
}

TEST_F(ChooserTest, OfSeveralTheOneWhoseWayThereAndBackIsShortestIsChosen) {
  EXPECT_EQ(after(disk(), {trial("lz4", 0.6, 1e9, 4e9), trial("zstd-3", 0.4, 0.3e9, 1e9)}).codec, codec("lz4"))
      << "2.4 GB/s of work against a path of 3.3";
  Conditions slow = disk();
  slow.write_bytes_s = slow.read_bytes_s = 0.5e9;
  EXPECT_EQ(chooser.decide(slow).codec, codec("zstd-3"));
}

TEST_F(ChooserTest, AFullTierTakesTheSmallestThatIsNoSlower) {
  Conditions now = disk();
  const auto trials = {trial("lz4", 0.6, 1e9, 4e9), trial("zstd-3", 0.4, 0.3e9, 1e9)};
  now.fill = 0.89;
  EXPECT_EQ(after(now, trials).why, Why::faster);
  now.fill = 0.95;
  const Decision decision = chooser.decide(now);
  EXPECT_EQ(decision.codec, codec("zstd-3"));
  EXPECT_EQ(decision.why, Why::more_room);
  now.compressors = 6;  // 1.8 GB/s
  EXPECT_EQ(chooser.decide(now).codec, codec("lz4"));
  now.compressors = 1;
  EXPECT_EQ(chooser.decide(now).codec, nullptr) << "full, but not at the price of a slower path";
}

TEST_F(ChooserTest, AFullTierIsOneUntilItIsClearlyLess) {
  Conditions now = disk();
  const auto why_at = [&](double fill) {
    now.fill = fill;
    return chooser.decide(now).why;
  };
  chooser.observe(now, sample({trial("lz4", 0.6, 1e9, 4e9), trial("zstd-3", 0.4, 0.3e9, 1e9)}));
  EXPECT_EQ(why_at(0.88), Why::faster);
  EXPECT_EQ(why_at(0.91), Why::more_room);
  EXPECT_EQ(why_at(0.88), Why::more_room);
  EXPECT_EQ(why_at(0.84), Why::faster);
  EXPECT_EQ(why_at(0.88), Why::faster);
}

TEST_F(ChooserTest, ACodecIsTakenUpForMoreThanItIsKeptFor) {
  Conditions now = disk();
  now.compressors = 1000;
  EXPECT_EQ(after(now, {trial("lz4", 1 / 1.07, 1e9, 4e9)}).codec, nullptr);
  stored("lz4", 0.5, 60);
  EXPECT_TRUE(compresses(now));
  stored("lz4", 1 / 1.07, 60);
  EXPECT_TRUE(compresses(now)) << "the same 7 %, of one that is in use";
  stored("lz4", 1 / 1.03, 60);
  EXPECT_FALSE(compresses(now));
  stored("lz4", 1 / 1.07, 60);
  EXPECT_FALSE(compresses(now));
}

TEST_F(ChooserTest, ACodecThatIsAlmostAsGoodReplacesNone) {
  const Conditions now = disk();
  EXPECT_EQ(after(now, {trial("lz4", 0.5, 2e9, 4e9), trial("zstd-3", 0.51, 2e9, 4e9)}).codec, codec("lz4"));
  for (const auto& [fraction, expected] : {std::pair{0.49, "lz4"}, std::pair{0.46, "lz4"}, std::pair{0.4, "zstd-3"}}) {
    for (int i = 0; i < 20; ++i) {
      chooser.observe(now, sample({trial("lz4", 0.5, 2e9, 4e9), trial("zstd-3", fraction, 2e9, 4e9)}));
    }
    EXPECT_EQ(chooser.decide(now).codec, codec(expected)) << fraction;
  }
}

TEST_F(ChooserTest, PagesThatDoNotFitEndIt) {
  const Conditions now = disk();
  EXPECT_NE(after(now, {trial("lz4", 0.5, 1e9, 4e9)}).codec, nullptr);
  int pages = 0;
  while (chooser.decide(now).codec != nullptr && pages < 100) {
    chooser.observe(Stored{codec("lz4"), kPage, std::nullopt, 0.01});
    ++pages;
  }
  EXPECT_EQ(pages, 9) << "a quarter of the way to 1 each: above 1/1.04 then";
}

TEST_F(ChooserTest, HowMuchSlowerSamplesAreIsLearntFromPages) {
  Conditions now = disk();
  now.compressors = 3;
  const auto sampled = {Trial{codec("lz4"), 0.3, 1e6 / 0.5e9, 1e6 / 4e9}};
  EXPECT_NEAR(after(now, sampled).write_gain, 1.2, 0.01)
      << "three of 0.8 GB/s, by what is assumed of samples; a path of 2";
  for (int i = 0; i < 20; ++i) chooser.observe(Stored{codec("lz4"), kPage, kPage / 3, double(kPage) / 1e9});
  for (int i = 0; i < 20; ++i) chooser.observe(now, sample(sampled));
  EXPECT_NEAR(chooser.decide(now).write_gain, 1.5, 0.01) << "three of 1 GB/s";
}

TEST_F(ChooserTest, SlowDecompressionSeenLaterEndsIt) {
  const Conditions now = disk();
  EXPECT_NE(after(now, {trial("lz4", 0.5, 1e9, 4e9)}).codec, nullptr);
  for (int i = 0; i < 10; ++i) chooser.observe(Loaded{codec("lz4"), kPage, double(kPage) / 0.4e9});
  EXPECT_EQ(chooser.decide(now).codec, nullptr);
}

TEST_F(ChooserTest, RefusalsMakeSamplesRareUpToEverySixtyFourthPage) {
  const Conditions now = disk();
  std::vector<int> gaps;
  for (int i = 0; i < 9; ++i) {
    gaps.push_back(pages_until_sample(now));
    chooser.observe(now, sample({trial("lz4", 1, 9e9, 9e9), trial("zstd-3", 1, 9e9, 9e9)}));
  }
  EXPECT_EQ(gaps, (std::vector{4, 2, 4, 8, 16, 32, 64, 64, 64})) << "the first is as soon as it is paid for";
  chooser.observe(now, sample({trial("lz4", 0.01, 9e9, 9e9), trial("zstd-3", 0.01, 9e9, 9e9)}));
  EXPECT_EQ(pages_until_sample(now), 64) << "to see whether it is still the best";
}

TEST_F(ChooserTest, SamplesArePaidForByTheTimeThatPagesTake) {
  Conditions now = disk();
  now.page_bytes = std::uint64_t{2} << 20;
  double moved_s = 0, sampled_s = 0;
  int samples = 0;
  for (int page = 0; page < 20'000; ++page) {
    const SamplePlan plan = chooser.plan_sample(now);
    if (!plan.codecs.empty()) {
      EXPECT_LE(plan.bytes, now.page_bytes / 32);
      Sample taken = sample({trial("lz4", page % 2 == 0 ? 0.5 : 1, 1e9, 4e9)});
      taken.seconds = page < 10'000 ? 300e-6 : 3e-3;  // far more than planned
      chooser.observe(now, taken);
      sampled_s += taken.seconds;
      ++samples;
    }
    (void)chooser.decide(now);
    moved_s += double(now.page_bytes) / now.write_bytes_s;
    EXPECT_LE(sampled_s, 0.02 * moved_s + 3e-3) << page;
  }
  EXPECT_GT(samples, 100);
}

TEST_F(ChooserTest, APathThatNoWorkersKeepUpWithIsNotEvenSampled) {
  Conditions now = disk();
  now.write_bytes_s = now.read_bytes_s = 50e9;
  EXPECT_EQ(pages_until_sample(now), 10'000);
  now.write_bytes_s = now.read_bytes_s = 2e9;
  EXPECT_EQ(pages_until_sample(now), 0);
}

TEST_F(ChooserTest, CodecsThatCannotKeepUpAreLeftOutOfSamples) {
  Conditions now = disk();
  now.write_bytes_s = 8e9;
  EXPECT_LT(pages_until_sample(now), 10);
  EXPECT_EQ(chooser.plan_sample(now).codecs, std::vector{codec("lz4")});
}

TEST_F(ChooserTest, APathOfUnknownRateTakesPagesAsTheyAre) {
  (void)after(disk(), {trial("lz4", 0.1, 1e9, 4e9)});
  for (double Conditions::* rate : {&Conditions::write_bytes_s, &Conditions::read_bytes_s}) {
    Conditions now = disk();
    now.*rate = 0;
    EXPECT_EQ(chooser.decide(now).codec, nullptr);
    EXPECT_TRUE(chooser.plan_sample(now).codecs.empty());
    chooser.observe(now, sample({}));
  }
  EXPECT_EQ(chooser.decide(disk()).codec, codec("lz4"));
}

TEST_F(ChooserTest, CopiesToldTheSameAnswerTheSame) {
  Chooser copy = chooser;
  const Conditions now = disk();
  for (int page = 0; page < 1000; ++page) {
    for (Chooser* each : {&chooser, &copy}) {
      if (!each->plan_sample(now).codecs.empty()) {
        each->observe(now,
                      sample({trial("lz4", page % 7 / 7.0, 1e9, 4e9), trial("zstd-3", page % 5 / 5.0, 0.4e9, 1e9)}));
      }
      each->observe(Stored{codec("lz4"), kPage, kPage / std::uint64_t(1 + page % 3), 0.02});
    }
    EXPECT_EQ(chooser.decide(now).codec, copy.decide(now).codec);
    EXPECT_EQ(chooser.plan_sample(now).seed, copy.plan_sample(now).seed);
  }
}

// Real pages and codecs, but a simulated clock, so that the machine does not matter: each codec
// takes 15 µs per sample.
class RealPages : public ::testing::Test {
 protected:
  static std::string chosen(Kind kind, double path_bytes_s) {
    Conditions now = disk();
    now.page_bytes = std::uint64_t{2} << 20;
    now.write_bytes_s = now.read_bytes_s = path_bytes_s;
    Chooser chooser(default_candidates());
    Workspace workspace;
    const ClockNs clock = [at = std::uint64_t{0}]() mutable { return at += 15'000; };
    const std::array pages{make_page(kind, now.page_bytes, 1), make_page(kind, now.page_bytes, 2)};
    Decision decision;
    for (std::size_t i = 0; i < 100; ++i) {
      const Bytes& page = pages[i % pages.size()];
      if (const SamplePlan plan = chooser.plan_sample(now); !plan.codecs.empty()) {
        chooser.observe(now, *take_sample(page, plan, workspace, clock));
      }
      decision = chooser.decide(now);
      if (decision.codec == nullptr) continue;
      Bytes out(decision.out_bytes);
      const auto stored_bytes = *decision.codec->compress(page, out, workspace);
      chooser.observe(Stored{decision.codec, now.page_bytes, stored_bytes, 1e-3});
    }
    return decision.codec == nullptr ? std::string(why_name(decision.why)) : std::string(decision.codec->name());
  }
};

TEST_F(RealPages, WeightsGoBehindAShuffle) {
  EXPECT_EQ(chosen(Kind::bf16, 2e9), "shuffle2+zstd-huffman");
  EXPECT_EQ(chosen(Kind::fp32, 2e9), "shuffle4+zstd-huffman");
}

TEST_F(RealPages, RepetitionsAndZerosAreCompressedNoiseIsNot) {
  EXPECT_NE(chosen(Kind::half, 2e9), "no gain");
  EXPECT_NE(chosen(Kind::zeros, 2e9), "no gain");
  EXPECT_EQ(chosen(Kind::noise, 2e9), "no gain");
}

TEST_F(RealPages, APathOf50GBAndSecondDeclinesEverything) {
  for (const Kind kind : kKinds) EXPECT_EQ(chosen(kind, 50e9), "nothing known") << kind_name(kind);
}

}  // namespace
}  // namespace vmem::compress
