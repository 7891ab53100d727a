#include "bench/table.hpp"

#include <gtest/gtest.h>

#include <sstream>

#include "bench/bench.hpp"

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
  static std::string format_table(std::span<const Record> records, const Gpu& gpu) {
    std::string text = format_heading();
    for (const Record& record : records) text += format_row(record, gpu);
    return text + format_notes(records);
  }
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

TEST_F(TableTest, AGoalThatNeedsNoGpuIsJudgedBesideAnEmulatedOne) {
  Record records[] = {streamed(), streamed()};
  for (Record& record : records) record.goal->needs = Goal::Needs::host;
  records[1].achieved = 40;
  EXPECT_EQ(goal_met(records[0], *gpu_), true);
  EXPECT_EQ(goal_met(records[1], *gpu_), false);
  const std::string table = format_table(records, *gpu_);
  EXPECT_NE(table.find("met, emulated"), std::string::npos) << table;
  EXPECT_NE(table.find("MISSED, emulated"), std::string::npos) << table;
}

TEST_F(TableTest, AMissedGoalFailsTheRunOnlyWithCheck) {
  Record record = streamed();
  record.achieved = 40;
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, true), kExitOk) << "not judged: the GPU is emulated";
  record.goal->needs = Goal::Needs::host;
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, true), kExitMismatch);
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, false), kExitOk);
  record.achieved = 49;
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, true), kExitOk);
  record.details["limit_best"] = 48;
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, true), kExitMismatch) << "above every sample of its limit";
  EXPECT_NE(format_table({&record, 1}, *gpu_).find("above every sample of its limit"), std::string::npos);
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, false), kExitOk);
  record.verified = false;
  EXPECT_EQ(exit_code({&record, 1}, *gpu_, false), kExitMismatch);
}

TEST_F(TableTest, RowsAreShownOnceAsTheyComeAndNotesNameTheirRecord) {
  RowPrinter rows(*gpu_);
  std::vector<Record> records{streamed()};
  testing::internal::CaptureStdout();
  rows.print_new(records);
  const std::string first = testing::internal::GetCapturedStdout();
  EXPECT_NE(first.find("achieved"), std::string::npos);
  EXPECT_NE(first.find("stream read-only 4x"), std::string::npos);
  records.push_back(streamed());
  records.back().variant = "read-write 4x";
  testing::internal::CaptureStdout();
  rows.print_new(records);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), format_row(records.back(), *gpu_));
  records[0].notes = {"slow", "read-only 4x: fast"};
  EXPECT_EQ(format_notes(records), "  stream read-only 4x: slow\n  stream read-only 4x: fast\n");
}

TEST_F(TableTest, WrongDataIsShownWithItsPlace) {
  Record record = streamed();
  record.verified = false;
  record.mismatch = "first bad byte offset 42";
  const std::string table = format_table({&record, 1}, *gpu_);
  EXPECT_NE(table.find("WRONG DATA: first bad byte offset 42"), std::string::npos) << table;
}

TEST(Record, ComparesMediansAndKeepsBothSpreadsAndTheBestLimit) {
  Measured measured;
  for (const double limit : {10.0, 20.0, 12.0, 12.0}) measured.limit.add(limit);
  for (const double achieved : {9.0, 12.0, 6.0}) measured.achieved.add(achieved);
  Record record;
  record.set(measured);
  EXPECT_EQ(record.limit, 12);
  EXPECT_EQ(record.achieved, 9);
  EXPECT_EQ(record.details["limit_best"], 20);
  EXPECT_DOUBLE_EQ(record.details["limit_spread"], 10.0 / 12);
  EXPECT_DOUBLE_EQ(record.details["achieved_spread"], 6.0 / 9);
}

TEST(Samples, MedianOfAnEvenCountIsBetweenTheMiddleTwo) {
  Samples samples;
  EXPECT_EQ(samples.median(), 0);
  for (const double each : {4.0, 1.0, 3.0, 2.0}) samples.add(each);
  EXPECT_EQ(samples.median(), 2.5);
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
