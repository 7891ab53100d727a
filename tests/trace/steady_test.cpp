// Which part of a trace repeats.
#include "trace/steady.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace vmem::trace {
namespace {

// A launch at each microsecond.
class Recording {
 public:
  void launch(std::uint32_t what, std::size_t named = 1) {
    Launch launch;
    launch.what = what;
    launch.named.resize(named);
    add(launch);
  }
  void launch_all(const std::vector<std::uint32_t>& whats) {
    for (const std::uint32_t what : whats) launch(what);
  }
  void begin(Block block, std::uint64_t bytes) {
    BlockBegins begins;
    begins.block = block;
    begins.bytes = bytes;
    add(begins);
  }
  void end(Block block) { add(BlockEnds{block}); }
  std::uint64_t now_ns() const { return now_ns_; }
  Steady steady() const { return steady_part(trace_); }
  const Trace& trace() const { return trace_; }

 private:
  void add(const Body& body) {
    Event event;
    event.at_ns = now_ns_ += 1000;
    event.body = body;
    trace_.events.push_back(event);
  }
  Trace trace_;
  std::uint64_t now_ns_ = 0;
};

TEST(Steady, IsTheLastTwoPeriods) {
  Recording recording;
  for (std::uint32_t i = 0; i < 40; ++i) recording.launch(1000 + i);
  for (int step = 0; step < 6; ++step) recording.launch_all({1, 2, 3, 4, 5, 6, 7});
  const Steady steady = recording.steady();
  EXPECT_EQ(steady.periods, 2u);
  EXPECT_EQ(steady.launches, 7u);
  EXPECT_EQ(steady.from_ns, recording.now_ns() - 13 * 1000);
}

// A step ends with two equal layers: a shorter repetition, but not one that fills the last third.
TEST(Steady, APeriodContainsShorterOnes) {
  Recording recording;
  for (int step = 0; step < 8; ++step) {
    recording.launch_all({1, 2, 3});
    for (int layer = 0; layer < 4; ++layer) recording.launch_all({4, 5, 6, 7, 8});
  }
  EXPECT_EQ(recording.steady().launches, 23u);
}

TEST(Steady, ManyEqualLayersAreNoStep) {
  Recording recording;
  for (int step = 0; step < 6; ++step) {
    recording.launch_all({1, 2});
    for (int layer = 0; layer < 100; ++layer) recording.launch_all({4, 5, 6, 7, 8});
  }
  EXPECT_EQ(recording.steady().launches, 502u);
}

TEST(Steady, ASearchWithoutEndIsGivenUp) {
  Recording recording;
  std::mt19937 random(3);
  for (int i = 0; i < 300'000; ++i) recording.launch(random() % 25 == 0 ? std::uint32_t(random()) : 1);
  EXPECT_EQ(recording.steady().periods, 0u);
}

TEST(Steady, TheNumberOfNamedBlocksTellsLaunchesApart) {
  Recording recording;
  for (int step = 0; step < 8; ++step) {
    for (std::size_t i = 0; i < 9; ++i) recording.launch(1, 1 + i);
  }
  EXPECT_EQ(recording.steady().launches, 9u);
}

TEST(Steady, OneLaunchInFiftyMayDiffer) {
  const auto launches_of = [](std::uint32_t strangers) {
    Recording recording;
    for (std::uint32_t step = 0; step < 6; ++step) {
      for (std::uint32_t i = 0; i < 200; ++i) recording.launch(i < strangers ? 1000 + step * 200 + i : i);
    }
    return recording.steady();
  };
  EXPECT_EQ(launches_of(4).launches, 200u);
  EXPECT_EQ(launches_of(20).periods, 0u);
}

TEST(Steady, WithoutRepetitionItIsTheLastThird) {
  Recording recording;
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) recording.launch(std::uint32_t(random()));
  const Steady steady = recording.steady();
  EXPECT_EQ(steady.periods, 0u);
  EXPECT_EQ(steady.launches, 100u);
  EXPECT_EQ(steady.from_ns, recording.now_ns() - 99 * 1000);
  EXPECT_EQ(Recording().steady().launches, 0u);
}

TEST(Steady, ItsPeakIsOfWhatLivesInIt) {
  Recording recording;
  recording.begin(1, 1000);
  recording.launch(99);
  recording.end(1);
  recording.begin(2, 100);
  for (int step = 0; step < 6; ++step) {
    recording.begin(Block(10 + step), 30);
    recording.launch_all({1, 2, 3, 4, 5, 6, 7});
    recording.end(Block(10 + step));
  }
  EXPECT_EQ(recording.steady().peak_bytes, 130u);
  EXPECT_EQ(peak_bytes(recording.trace()), 1000u);
}

}  // namespace
}  // namespace vmem::trace
