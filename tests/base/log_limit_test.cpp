#include "base/log_limit.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace vmem {
namespace {

TEST(LogLimit, LogsOccurrencesWhoseNumberIsAPowerOfTwo) {
  LogLimit limit;
  std::vector<std::uint64_t> logged;
  for (int i = 0; i < 100; ++i) {
    if (const auto occurrence = limit.next(); occurrence.logged) logged.push_back(occurrence.count);
  }
  EXPECT_EQ(logged, (std::vector<std::uint64_t>{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(limit.count(), 100u);
}

TEST(LogLimit, AfterAResetTheNextOccurrenceIsTheFirst) {
  LogLimit limit;
  for (int i = 0; i < 3; ++i) limit.next();
  EXPECT_EQ(limit.count(), 3u);
  limit.reset();
  EXPECT_EQ(limit.count(), 0u);
  const auto first = limit.next();
  EXPECT_TRUE(first.logged);
  EXPECT_EQ(first.count, 1u);
}

TEST(LogLimit, ThreadsCountTogether) {
  constexpr int kThreads = 4, kEach = 1 << 12;
  LogLimit limit;
  std::atomic<int> logged{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < kEach; ++j) logged += limit.next().logged ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(limit.count(), std::uint64_t{kThreads} * kEach);
  EXPECT_EQ(logged.load(), 15);  // 2^0 to 2^14
}

}  // namespace
}  // namespace vmem
