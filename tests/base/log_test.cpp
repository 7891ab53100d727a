#include "base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace vmem::log {
namespace {

using ::testing::HasSubstr;

class LogTest : public testing::Test {
 protected:
  void TearDown() override { set_level(Level::warn); }

  template <class Act>
  static std::string stderr_of(Act act) {
    testing::internal::CaptureStderr();
    act();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, MessagesBelowTheLevelAreNeitherWrittenNorEvaluated) {
  set_level(Level::warn);
  int evaluated = 0;
  EXPECT_EQ(stderr_of([&] { VMEM_LOG_INFO("{}", ++evaluated); }), "");
  EXPECT_EQ(evaluated, 0);
}

TEST_F(LogTest, MessagesAtTheLevelAreOneLineWithTheLevelsName) {
  set_level(Level::info);
  const std::string text = stderr_of([] { VMEM_LOG_INFO("{} of {} bytes", 3, 4); });
  EXPECT_THAT(text, HasSubstr("info: 3 of 4 bytes\n"));
  EXPECT_THAT(text, HasSubstr("[vmem "));
}

TEST_F(LogTest, BracesInArgumentsAreNotFormatted) {
  EXPECT_THAT(stderr_of([] { VMEM_LOG_ERROR("{}", "{} %v"); }), HasSubstr("error: {} %v\n"));
}

TEST_F(LogTest, APlainLineIsAWarning) {
  EXPECT_EQ(stderr_of([] { write_plain("no memory"); }), "[vmem] warning: no memory\n");
  set_level(Level::error);
  EXPECT_EQ(stderr_of([] { write_plain("no memory"); }), "");
}

TEST_F(LogTest, OffSilencesErrors) {
  set_level(Level::off);
  EXPECT_EQ(stderr_of([] { VMEM_LOG_ERROR("x"); }), "");
}

TEST_F(LogTest, LevelsAreOrdered) {
  for (const char* name : {"trace", "debug", "info", "warn", "error", "off"}) {
    const auto level = parse_level(name);
    ASSERT_TRUE(level) << name;
    set_level(*level);
    EXPECT_TRUE(enabled(*level));
    for (int below = 0; below < int(*level); ++below) EXPECT_FALSE(enabled(Level(below))) << name;
  }
}

TEST_F(LogTest, UnknownLevelIsAnInvalidOption) {
  const auto level = parse_level("loud");
  ASSERT_FALSE(level);
  EXPECT_EQ(level.error().status, VMEM_ERROR_INVALID_OPTION);
}

}  // namespace
}  // namespace vmem::log
