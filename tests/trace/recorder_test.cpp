#include "trace/recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trace/recorded.hpp"

namespace vmem::trace {
namespace {

using ::testing::ElementsAre;

constexpr std::uint64_t kBegan = 1'000'000;

class RecorderTest : public TraceTest {
 protected:
  RecorderTest() : recorder(std::move(*Recorder::create(path(), ~std::uint64_t{0}, some_header(), kBegan))) {}
  void begin(std::uint32_t region, std::uint64_t at_ns, std::uint32_t granules = 4) {
    recorder->region_begins(
        {.region = region, .bytes = std::uint64_t{granules} << 21, .granule = region * 100, .granules = granules},
        kBegan + at_ns);
  }
  void use(std::uint32_t thread, std::uint32_t region, std::uint32_t life) {
    recorder->used(thread, {.region = region, .life = life, .granule = region * 100, .granules = 4});
  }
  void launch(std::uint32_t thread, std::uint64_t at_ns) { recorder->launched(thread, {1, 0, 1}, 0, kBegan + at_ns); }
  // In words: "+1" block 1 begins, "-1" it ends, "1 2" a launch names 1 and 2.
  static std::string with(std::string before, Block block) { return before.append(std::to_string(block)); }
  std::vector<std::string> events() {
    recorder->finish();
    auto trace = read(path());
    EXPECT_TRUE(trace) << trace.error().message;
    std::vector<std::string> words;
    for (const Event& event : trace->events) {
      if (const auto* begins = std::get_if<BlockBegins>(&event.body)) words.push_back(with("+", begins->block));
      if (const auto* ends = std::get_if<BlockEnds>(&event.body)) words.push_back(with("-", ends->block));
      const auto* launched = std::get_if<Launch>(&event.body);
      if (launched == nullptr) continue;
      std::string names;
      for (const Named& each : launched->named) names = with(names.empty() ? names : names.append(" "), each.block);
      words.push_back(names);
    }
    return words;
  }
  const std::unique_ptr<Recorder> recorder;
};

TEST_F(RecorderTest, ALaunchNamesWhatItsThreadUsedBeforeIt) {
  begin(1, 10);
  begin(2, 20);
  use(0, 1, 0);
  use(1, 2, 0);  // another thread's, in between
  use(0, 2, 0);
  launch(0, 30);
  launch(1, 40);
  EXPECT_THAT(events(), ElementsAre("+1", "+2", "1 2", "2"));
}

TEST_F(RecorderTest, ARegionFreedAndTakenAgainIsAnotherBlock) {
  begin(1, 10);
  use(0, 1, 0);
  launch(0, 20);
  recorder->region_changed(1, 1, true, kBegan + 22);
  recorder->region_changed(1, 1, false, kBegan + 25);
  use(0, 1, 1);
  launch(0, 30);
  recorder->region_ends(1, kBegan + 40);
  EXPECT_THAT(events(), ElementsAre("+1", "1", "-1", "+2", "2", "-2"));
}

// The mover reads one thread's log after the other.
TEST_F(RecorderTest, UsesOfANewLifeMayComeBeforeTheChangeAndOfAnOldOneAfter) {
  begin(1, 10);
  use(0, 1, 1);  // the block that another thread has freed and taken again
  launch(0, 50);
  recorder->region_changed(1, 1, false, kBegan + 45);
  use(1, 1, 0);  // before that
  launch(1, 20);
  EXPECT_THAT(events(), ElementsAre("+1", "-1", "+2", "1", "2"));
}

TEST_F(RecorderTest, UsesOfUnknownRegionsAndLivesAreLeftOut) {
  begin(1, 10);
  use(0, 7, 0);
  recorder->region_changed(1, 5, true, kBegan + 15);
  use(0, 1, 2);
  launch(0, 20);
  EXPECT_THAT(events(), ElementsAre("+1", "-1", ""));
}

// Where blocks share pages, `life` counts the ends of all blocks of their region.
class Shared : public RecorderTest {
 protected:
  static constexpr Recorder::Place kHere{.granule = 8, .granules = 2};
  void SetUp() override { recorder->shared_region_begins(0, 64); }
  void change(std::uint64_t life, bool dead, std::uint64_t at_ns) {
    recorder->block_changed(kHere, life, dead, kBegan + at_ns);
  }
  void use_at(std::uint32_t thread, std::uint64_t life) { recorder->used_at(thread, kHere, {.life = life}); }
};

TEST_F(Shared, TheNextBlockAtAPlaceIsAnother) {
  change(1, false, 10);
  use_at(0, 5);
  launch(0, 20);
  change(6, true, 30);
  change(9, false, 40);
  use_at(0, 9);
  launch(0, 50);
  EXPECT_THAT(events(), ElementsAre("+1", "1", "-1", "+2", "2"));
}

// The mover reads one thread's log after the other.
TEST_F(Shared, ABlockMayBeginByItsFirstUse) {
  use_at(0, 5);
  launch(0, 20);
  change(1, false, 10);
  EXPECT_THAT(events(), ElementsAre("+1", "1"));
}

TEST_F(Shared, ABlockOfTheSameSizeIsAnotherThoughTheEndBetweenIsReadLater) {
  change(1, false, 10);
  use_at(0, 2);
  launch(0, 20);
  change(9, false, 40);  // the first one's end is in another thread's log
  use_at(0, 9);
  launch(0, 50);
  change(8, true, 30);
  use_at(0, 9);
  launch(0, 60);
  EXPECT_THAT(events(), ElementsAre("+1", "1", "-1", "+2", "2", "2"));
}

TEST_F(Shared, ALateUseOfTheBlockBeforeIsKept) {
  change(1, false, 10);
  change(6, true, 30);
  change(9, false, 40);
  use_at(1, 3);
  launch(1, 20);
  EXPECT_THAT(events(), ElementsAre("+1", "1", "-1", "+2"));
}

TEST_F(Shared, ARegionThatBeginsKnowsNothingOfTheOneBefore) {
  change(1, false, 10);
  change(50, true, 20);
  recorder->shared_region_begins(0, 64);
  change(1, false, 30);
  use_at(0, 1);
  launch(0, 40);
  EXPECT_THAT(events(), ElementsAre("+1", "-1", "+2", "2"));
}

TEST_F(RecorderTest, StepsOfTheMoverThatFollowEachOtherAreOne) {
  recorder->busy(kBegan + 1'000, kBegan + 2'000);
  recorder->busy(kBegan + 12'000, kBegan + 13'000);
  recorder->busy(kBegan + 100'000, kBegan + 101'000);
  recorder->finish();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> busy;
  const auto trace = read(path());
  for (const Event& event : trace->events) {
    if (const auto* each = std::get_if<Busy>(&event.body)) busy.emplace_back(event.at_ns, each->took_ns);
  }
  EXPECT_THAT(busy, ElementsAre(std::pair(1'000u, 12'000u), std::pair(100'000u, 1'000u)));
}

TEST_F(RecorderTest, NamesAreNumberedOnceAndWrittenBeforeTheirLaunch) {
  const std::uint32_t gemm = recorder->number_of("gemm");
  EXPECT_EQ(recorder->number_of("gemm"), gemm);
  EXPECT_NE(recorder->number_of("add"), gemm);
  recorder->launched(0, {1, 0, 1}, gemm, kBegan + 10);
  recorder->finish();
  const auto trace = read(path());
  EXPECT_EQ(trace->names.at(gemm), "gemm");
}

}  // namespace
}  // namespace vmem::trace
