#include "pagetable/holds.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

namespace vmem::pagetable {
namespace {

Span span_of(std::uint32_t first, std::uint32_t count, Access access = Access::read) {
  return Span({first}, count, access);
}

TEST(Span, PacksItsFieldsIntoOneWord) {
  const Span span(Granule{(1u << 29) - 1}, 12345, Access::write);
  const Span again(span.word());
  EXPECT_EQ(again.first(), (1u << 29) - 1);
  EXPECT_EQ(again.count(), 12345u);
  EXPECT_EQ(again.access(), Access::write);
  EXPECT_TRUE(Span().empty());
  EXPECT_FALSE(span_of(0, 1).empty());
}

TEST(ThreadSlot, AHoldIsSeenUntilItIsWithdrawn) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  const std::uint32_t index = slot->publish(span_of(10, 5), {1, 2});
  EXPECT_TRUE(registry.holds_overlap(14, 20));
  EXPECT_FALSE(registry.holds_overlap(15, 20));
  EXPECT_FALSE(registry.holds_overlap(0, 10));
  slot->clear(index);
  EXPECT_FALSE(registry.any_hold());
}

TEST(ThreadSlot, HundredsOfHoldsAtOnceAreAllSeenAndFound) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  std::vector<std::uint32_t> indices;
  for (std::uint32_t i = 0; i < 300; ++i) indices.push_back(slot->publish(span_of(2 * i, 1), {i, 1}));
  for (std::uint32_t i = 0; i < 300; ++i) {
    EXPECT_TRUE(registry.holds_overlap(2 * i, 2 * i + 1));
    EXPECT_EQ(slot->find({i, 1}, {}), indices[i]);
    EXPECT_EQ(slot->span(indices[i]).first(), 2 * i);
  }
  for (const std::uint32_t index : indices) slot->clear(index);
  EXPECT_EQ(slot->held(), 0u);
  EXPECT_FALSE(registry.any_hold());
}

TEST(ThreadSlot, EqualHoldsAreFoundOneByOne) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  slot->publish(span_of(1, 1), {7, 7});
  slot->publish(span_of(1, 1), {7, 7});
  const auto first = std::uint32_t(slot->find({7, 7}, {}));
  const auto second = std::uint32_t(slot->find({7, 7}, std::array{first}));
  EXPECT_NE(first, second);
  EXPECT_EQ(slot->find({7, 7}, std::array{first, second}), -1);
}

TEST(ThreadRegistry, SlotsOfEndedThreadsServeLaterOnes) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  registry.give_back(slot);
  EXPECT_EQ(registry.claim(), slot);
}

TEST(ThreadRegistry, ASlotYieldedWithHoldsIsNotHandedOut) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  slot->publish(span_of(1, 1), {1, 1});
  registry.give_back(slot);
  EXPECT_NE(registry.claim(), slot);
  EXPECT_TRUE(registry.holds_overlap(1, 2));
}

TEST(UseLog, GivesUsesInOrderAcrossManyChunks) {
  UseLog log;
  constexpr std::uint32_t kUses = 10 * UseLog::kChunkUses + 3;
  std::uint32_t filled = 0;
  for (std::uint32_t i = 0; i < kUses; ++i) filled += log.append({span_of(i, 1), Stamp(1, i + 1)}) ? 1 : 0;
  EXPECT_EQ(filled, 10u) << "the mover is told once a chunk";
  std::uint32_t next = 0;
  log.drain([&](const LoggedUse& use) { EXPECT_EQ(use.span.first(), next++); });
  EXPECT_EQ(next, kUses);
  log.drain([](const LoggedUse&) { FAIL() << "drained twice"; });
}

TEST(UseLog, RepeatsWithinAnEpochAreDroppedAndANewEpochIsNot) {
  UseLog log;
  for (int i = 0; i < 100; ++i) log.append({span_of(1, 1), Stamp(1, 1)});
  log.append({span_of(1, 1), Stamp(1, 2)});
  std::vector<std::uint64_t> epochs;
  log.drain([&](const LoggedUse& use) { epochs.push_back(use.stamp.epoch()); });
  EXPECT_EQ(epochs, (std::vector<std::uint64_t>{1, 2}));
}

TEST(UseLog, NothingIsMissedWhenDrainedWhileItIsWritten) {
  UseLog log;
  constexpr std::uint32_t kUses = 200'000;
  std::thread writer([&] {
    for (std::uint32_t i = 0; i < kUses; ++i) log.append({span_of(i, 1), Stamp(1, i + 1)});
  });
  std::uint32_t next = 0;
  while (next < kUses) log.drain([&](const LoggedUse& use) { ASSERT_EQ(use.span.first(), next++); });
  writer.join();
}

// The protocol between a thread that uses a page and a thread that takes it: publish then check,
// against take then scan. In every interleaving, at most one proceeds.
TEST(Holds, ATakerAndAHolderNeverBothGoAhead) {
  ThreadRegistry registry;
  ThreadSlot* slot = registry.claim();
  std::atomic<std::uint32_t> accessible{1};
  std::atomic<int> both{0}, held{0}, taken{0};
  bool holder_in = false, taker_in = false;
  constexpr int kRounds = 50'000;
  std::barrier meet(2, [&]() noexcept {
    both += holder_in && taker_in;
    held += holder_in;
    taken += taker_in;
    holder_in = taker_in = false;
    accessible.store(1);
  });
  std::thread holder([&] {
    for (int i = 0; i < kRounds; ++i) {
      const std::uint32_t index = slot->publish(span_of(1, 1), {1, 1});
      holder_in = accessible.load(std::memory_order_seq_cst) == 1;
      meet.arrive_and_wait();
      slot->clear(index);
      meet.arrive_and_wait();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    accessible.store(0, std::memory_order_seq_cst);
    taker_in = registry.barrier_all_threads() && !registry.holds_overlap(1, 2);
    meet.arrive_and_wait();
    meet.arrive_and_wait();
  }
  holder.join();
  EXPECT_EQ(both.load(), 0);
  EXPECT_GT(held.load() + taken.load(), 0);
}

}  // namespace
}  // namespace vmem::pagetable
