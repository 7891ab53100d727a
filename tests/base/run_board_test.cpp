#include "base/run_board.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace vmem {
namespace {

class RunBoardTest : public testing::Test {
 protected:
  RunBoardTest() { ::setenv(kRunVariable, board_.path().c_str(), 1); }
  ~RunBoardTest() override { ::unsetenv(kRunVariable); }
  RunBoard board_ = *RunBoard::create();
};

TEST_F(RunBoardTest, AddsUpWhatItsProcessesSaid) {
  for (int i = 0; i < 3; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto board = RunBoard::of_environment();
      RunBoard::Entry* const entry = board ? board->claim() : nullptr;
      if (entry == nullptr) ::_exit(1);
      entry->figures.launches = 7;
      entry->figures.into_hbm_bytes = 100;
      entry->state.store(i == 2 ? RunBoard::State::started : RunBoard::State::ended, std::memory_order_release);
      ::_exit(0);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  const RunBoard::Summary summary = board_.summary();
  EXPECT_EQ(summary.processes, 3u);
  EXPECT_EQ(summary.without_figures, 1u);
  EXPECT_EQ(summary.total.launches, 14u);
  EXPECT_EQ(summary.total.into_hbm_bytes, 200u);
  EXPECT_FALSE(summary.refused);
}

TEST_F(RunBoardTest, ARefusedStartIsNoProcess) {
  board_.claim()->state = RunBoard::State::refused;
  EXPECT_TRUE(board_.summary().refused);
  EXPECT_EQ(board_.summary().processes, 0u);
}

TEST_F(RunBoardTest, ProcessesBeyondItsEntriesAreCounted) {
  RunBoard::Entry* last = nullptr;
  std::uint32_t claims = 0;
  do {
    last = board_.claim();
    ++claims;
  } while (last != nullptr);
  EXPECT_EQ(board_.summary().processes, claims);
}

TEST_F(RunBoardTest, AFileThatIsNoBoardIsNone) {
  ::setenv(kRunVariable, "/proc/self/exe", 1);
  EXPECT_FALSE(RunBoard::of_environment());
  ::setenv(kRunVariable, "/nowhere", 1);
  EXPECT_FALSE(RunBoard::of_environment());
}

}  // namespace
}  // namespace vmem
