#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/fake_source.hpp"

namespace vmem::runtime::testing {
namespace {

// One granule of space and blocks of 1 MiB: only two blocks exist, so every result is known.
class StreamOrderTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1 << 20;

  // 0 if no block is usable on the stream.
  std::uintptr_t allocate(vmem_stream on) { return blocks->allocate(0, kBytes, on).value_or(0); }
  void free(std::uintptr_t block, vmem_stream on) { ASSERT_TRUE(blocks->free(block, on)); }
  // Frees both blocks on the stream.
  void free_both_on(vmem_stream on) {
    const std::uintptr_t first = allocate(on), second = allocate(on);
    ASSERT_NE(first, 0u);
    ASSERT_NE(second, 0u);
    free(first, on);
    free(second, on);
  }

  void TearDown() override { FakeSource::current_context = 0; }

  FakeSource source{1};
  std::unique_ptr<Suballocator> blocks = make_suballocator(source);
};

TEST_F(StreamOrderTest, SameStreamReusesAtOnce) {
  free_both_on(kA);
  EXPECT_NE(allocate(kA), 0u);
  EXPECT_NE(allocate(kA), 0u);
  EXPECT_EQ(source.marks, 0);
}

TEST_F(StreamOrderTest, OtherStreamWaitsForTheWorkBeforeTheFree) {
  free_both_on(kA);
  EXPECT_EQ(allocate(kB), 0u);
  source.finish(kB);
  EXPECT_EQ(allocate(kB), 0u);
  source.finish(kA);
  EXPECT_NE(allocate(kB), 0u);
}

TEST_F(StreamOrderTest, BlocksThatWaitStillServeTheirOwnStreamAtOnce) {
  free_both_on(kA);
  EXPECT_EQ(allocate(kB), 0u);  // empties the cache
  EXPECT_NE(allocate(kA), 0u);
  EXPECT_NE(allocate(kA), 0u);
}

TEST_F(StreamOrderTest, SameStreamReusesAcrossThreads) {
  const std::uintptr_t first = allocate(kA), second = allocate(kA);
  std::thread([&] {
    free(first, kA);
    free(second, kA);
  }).join();
  EXPECT_NE(allocate(kA), 0u);
  EXPECT_EQ(allocate(kB), 0u);
}

TEST_F(StreamOrderTest, FreeCountsOnItsOwnStreamNotOnThatOfTheAllocation) {
  const std::uintptr_t first = allocate(kA), second = allocate(kA);
  free(first, kB);
  free(second, kB);
  EXPECT_EQ(allocate(kA), 0u);
  EXPECT_NE(allocate(kB), 0u);
}

TEST_F(StreamOrderTest, HandleZeroAndTheLegacyHandleAreOneStream) {
  free_both_on(kDefault);
  EXPECT_NE(allocate(kLegacy), 0u);
}

TEST_F(StreamOrderTest, DefaultStreamsOfTwoContextsAreNotOrdered) {
  FakeSource::current_context = 1;
  free_both_on(kDefault);
  FakeSource::current_context = 2;
  EXPECT_EQ(allocate(kDefault), 0u);
  // The mark belongs to the first context, though the second was current then.
  source.finish(kLegacy, 2);
  EXPECT_EQ(allocate(kDefault), 0u);
  source.finish(kLegacy, 1);
  EXPECT_NE(allocate(kDefault), 0u);
}

TEST_F(StreamOrderTest, HandlesOfStreamsMeanTheSameInEveryContext) {
  FakeSource::current_context = 1;
  free_both_on(kA);
  FakeSource::current_context = 2;
  EXPECT_NE(allocate(kA), 0u);
}

TEST_F(StreamOrderTest, PerThreadStreamsOfTwoThreadsAreNotOrdered) {
  const std::uintptr_t first = allocate(kPerThread), second = allocate(kPerThread);
  std::thread([&] {
    free(first, kPerThread);
    free(second, kPerThread);
  }).join();
  EXPECT_EQ(allocate(kPerThread), 0u);
  source.finish(kPerThread);
  EXPECT_NE(allocate(kPerThread), 0u);
}

TEST_F(StreamOrderTest, ThreadReusesItsOwnPerThreadStreamAtOnce) {
  free_both_on(kPerThread);
  EXPECT_NE(allocate(kPerThread), 0u);
  EXPECT_NE(allocate(kPerThread), 0u);
}

TEST_F(StreamOrderTest, TrimLeavesOtherThreadsPerThreadBlocksToThem) {
  free_both_on(kPerThread);
  std::thread([&] { EXPECT_TRUE(blocks->trim()); }).join();
  EXPECT_EQ(source.marks, 0);
  EXPECT_NE(allocate(kPerThread), 0u);
  EXPECT_NE(allocate(kPerThread), 0u);
}

TEST_F(StreamOrderTest, LaterStreamWithTheSameHandleIsNotTakenForTheClosedOne) {
  free_both_on(kA);
  ASSERT_TRUE(blocks->close_stream(kA));
  EXPECT_EQ(allocate(kA), 0u);
  source.finish(kA);
  EXPECT_NE(allocate(kA), 0u);
}

TEST_F(StreamOrderTest, CloseOfAStreamThatNothingWaitsForAsksForNoMark) {
  free_both_on(kA);
  ASSERT_TRUE(blocks->close_stream(kB));
  EXPECT_EQ(source.marks, 0);
  EXPECT_NE(allocate(kA), 0u);
}

TEST_F(StreamOrderTest, CloseReachesWhatOtherThreadsFreed) {
  free_both_on(kA);
  std::thread([&] { EXPECT_TRUE(blocks->close_stream(kA)); }).join();
  EXPECT_EQ(allocate(kA), 0u);
  EXPECT_EQ(allocate(kB), 0u);
  source.finish(kA);
  EXPECT_NE(allocate(kB), 0u);
}

TEST_F(StreamOrderTest, CloseThatCannotMarkFailsAndCanBeRepeated) {
  free_both_on(kA);
  source.failing_marks = 100;
  EXPECT_FALSE(blocks->close_stream(kA));
  source.failing_marks = 0;
  EXPECT_NE(allocate(kA), 0u);  // still the same stream
  ASSERT_TRUE(blocks->close_stream(kA));
  EXPECT_EQ(allocate(kA), 0u);
  source.finish(kA);
  EXPECT_NE(allocate(kA), 0u);
}

TEST_F(StreamOrderTest, FreeSucceedsWithoutAMarkAndTheMarkIsMadeLater) {
  const std::uintptr_t first = allocate(kA), second = allocate(kA);
  source.failing_marks = 100;
  std::thread([&] {
    free(first, kA);
    free(second, kA);
  }).join();  // empties the cache without a mark
  source.failing_marks = 0;
  source.finish(kA);
  EXPECT_EQ(allocate(kB), 0u);  // makes the mark, which is later than the finish
  source.finish(kA);
  EXPECT_NE(allocate(kB), 0u);
}

TEST_F(StreamOrderTest, TrimDoesNotGiveBackWhatWorkMayStillUse) {
  free_both_on(kA);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 1u);
  source.finish(kA);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

}  // namespace
}  // namespace vmem::runtime::testing
