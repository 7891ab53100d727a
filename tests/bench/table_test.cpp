#include "bench/table.hpp"

#include <gtest/gtest.h>

#include <sstream>

namespace vmem::bench {
namespace {

Record streamed() {
  Record record;
  record.scenario = "stream";
  record.variant = "read-only 4x";
  record.unit = "GB/s";
  record.limit = 50;
  record.achieved = 49;
  record.goal = Goal{Goal::Bound::at_least, 0.97, true};
  record.verified = true;
  return record;
}

class TableTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = Gpu::open("emulated", 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
  }
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(TableTest, ColumnsLineUpAndShowLimitAchievedAndRatio) {
  Record latency;
  latency.scenario = "hit";
  latency.unit = "ns";
  latency.achieved = 120;
  latency.verified = true;
  const Record records[] = {streamed(), latency};
  std::istringstream lines(format_table(records, *gpu_));
  std::string heading, stream, hit;
  std::getline(lines, heading);
  std::getline(lines, stream);
  std::getline(lines, hit);
  EXPECT_NE(stream.find("50.00 GB/s"), std::string::npos);
  EXPECT_NE(stream.find("0.980"), std::string::npos);
  const auto end_of = [](const std::string& line, const char* word) {
    return line.find(word) + std::string(word).size();
  };
  EXPECT_EQ(end_of(heading, "achieved"), end_of(stream, "49.00 GB/s"));
  EXPECT_EQ(end_of(heading, "achieved"), end_of(hit, "120.0 ns"));
}

TEST_F(TableTest, EmulatedFiguresAreLabelledAndHeldToNoGoal) {
  const Record records[] = {streamed()};
  EXPECT_NE(format_table(records, *gpu_).find("emulated"), std::string::npos);
  EXPECT_EQ(goal_met(records[0], *gpu_), std::nullopt);
}

TEST_F(TableTest, WrongDataIsShownWithItsPlace) {
  Record record = streamed();
  record.verified = false;
  record.mismatch = "first bad byte offset 42";
  const std::string table = format_table({&record, 1}, *gpu_);
  EXPECT_NE(table.find("WRONG DATA: first bad byte offset 42"), std::string::npos) << table;
}

TEST(Samples, MedianAndSpreadOfOddAndSingleCounts) {
  Samples samples;
  samples.add(3);
  EXPECT_EQ(samples.median(), 3);
  EXPECT_EQ(samples.spread(), 0);
  samples.add(1);
  samples.add(2);
  EXPECT_EQ(samples.median(), 2);
  EXPECT_EQ(samples.spread(), 1);
}

TEST(Samples, LimitIsMeasuredBeforeBetweenAndAfter) {
  std::string order;
  const auto measured = measure_interleaved(
      2, [&]() -> Result<double> { return order += 'L', 1.0; }, [&]() -> Result<double> { return order += 'a', 2.0; });
  ASSERT_TRUE(measured);
  EXPECT_EQ(order, "LaLaL");
}

}  // namespace
}  // namespace vmem::bench
