#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/block_map.hpp"
#include "runtime/suballocator/fake_source.hpp"
#include "runtime/suballocator/slab.hpp"

namespace vmem::runtime::testing {
namespace {

constexpr std::size_t kGranules = 512;

class ThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override { source.always_complete = true; }

  // Marks a block's 256-byte units as used by one thread; false if another thread uses one.
  bool occupy(std::uintptr_t block, std::size_t bytes) {
    bool alone = true;
    for (std::size_t unit = first_unit(block); unit < end_unit(block, bytes); ++unit)
      alone &= !used[unit].exchange(true);
    return alone;
  }
  void vacate(std::uintptr_t block, std::size_t bytes) {
    for (std::size_t unit = first_unit(block); unit < end_unit(block, bytes); ++unit) used[unit].store(false);
  }
  static std::size_t first_unit(std::uintptr_t block) { return (block - FakeSource::kBase) / 256; }
  static std::size_t end_unit(std::uintptr_t block, std::size_t bytes) { return first_unit(block + bytes + 255); }

  FakeSource source{kGranules};
  std::unique_ptr<Suballocator> blocks = make_suballocator(source, kGranules);
  std::unique_ptr<std::atomic<bool>[]> used =
      std::make_unique<std::atomic<bool>[]>(kGranules * FakeSource::kGranule / 256);
};

// The race itself, as tight as possible: both threads claim thousands of blocks in the same order,
// so the faster one waits for the cache line that the other has just written.
TEST_F(ThreadsTest, OfThreadsClaimingOneBlockExactlyOneSucceeds) {
  constexpr int kRounds = 500;
  constexpr std::size_t kBlocks = FakeSource::kGranule / 256;
  BlockMap map(FakeSource::kBase, FakeSource::kGranule);
  ASSERT_TRUE(map.reserve_tables());
  Slab slab{.base = FakeSource::kBase, .granules = 1};
  ASSERT_TRUE(map.add(slab));
  std::barrier step(2);
  std::atomic<int> awake{0};
  const auto claim_all = [&](int round) {
    step.arrive_and_wait();
    // One thread wakes tens of microseconds before the other, enough to claim all blocks alone.
    ++awake;
    for (int turn = 1; awake.load() < 2 * (round + 1); ++turn) {
      if (turn % 100'000 == 0) std::this_thread::yield();  // only if the other thread has no core
    }
    std::size_t claimed = 0;
    for (std::size_t i = 0; i < kBlocks; ++i) claimed += map.claim(FakeSource::kBase + i * 256) >= 0 ? 1 : 0;
    return claimed;
  };
  std::atomic<std::size_t> claimed_by_other{0};
  std::jthread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      claimed_by_other = claim_all(round);
      step.arrive_and_wait();
    }
  });
  int wrong_rounds = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kBlocks; ++i) map.set_live(FakeSource::kBase + i * 256, 0);
    const std::size_t claimed = claim_all(round);
    step.arrive_and_wait();
    if (claimed + claimed_by_other != kBlocks) ++wrong_rounds;
  }
  EXPECT_EQ(wrong_rounds, 0);
}

TEST_F(ThreadsTest, OfThreadsFreeingOneBlockExactlyOneSucceeds) {
  constexpr int kRounds = 100;
  std::array<std::uintptr_t, 2000> held{};
  std::array<std::atomic<int>, 2000> successes{};
  std::barrier step(2);
  const auto free_all = [&] {
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (blocks->free(held[i], kA)) successes[i].fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::jthread other([&] {
    for (int round = 0; round < kRounds; ++round) {
      step.arrive_and_wait();
      free_all();
      step.arrive_and_wait();
    }
  });
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (auto& block : held) block = blocks->allocate(0, 1000, kA).value_or(0);
    step.arrive_and_wait();
    free_all();
    step.arrive_and_wait();
    for (auto& count : successes) wrong += count.exchange(0) != 1 ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(blocks->live_bytes(), 0u);
}

// A late second free, in steps: after the slab was given back, and after another class replaced it.
TEST_F(ThreadsTest, LateSecondFreeNeverHitsAnotherBlock) {
  // The lower block starts the slab; the other's address starts no block of a larger class.
  const auto low = blocks->allocate(0, 1000, kA);
  const auto first = blocks->allocate(0, 1000, kA);
  ASSERT_TRUE(low && first);
  ASSERT_EQ(*first, *low + 1024);
  std::barrier step(2);
  std::jthread late([&] {
    step.arrive_and_wait();  // the block was freed and its slab given back
    EXPECT_FALSE(blocks->free(*first, kA));
    step.arrive_and_wait();
    step.arrive_and_wait();  // the address is inside a larger block now
    EXPECT_FALSE(blocks->free(*first, kA));
    step.arrive_and_wait();
  });
  EXPECT_TRUE(blocks->free(*first, kA));
  EXPECT_TRUE(blocks->free(*low, kA));
  EXPECT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
  step.arrive_and_wait();
  step.arrive_and_wait();
  const auto large = blocks->allocate(0, 100'000, kA);
  EXPECT_EQ(large.value_or(0), *low);
  step.arrive_and_wait();
  step.arrive_and_wait();
  EXPECT_TRUE(blocks->find(*first));
}

TEST_F(ThreadsTest, BlocksFreedByAnotherThreadComeBackWithoutMoreSlabs) {
  constexpr int kRounds = 200;
  constexpr std::size_t kBlocks = 100;
  std::array<std::uintptr_t, kBlocks> handed{};
  std::barrier barrier(2);
  std::jthread consumer([&] {
    for (int i = 0; i < kRounds; ++i) {
      barrier.arrive_and_wait();
      for (const std::uintptr_t block : handed) EXPECT_TRUE(blocks->free(block, kA));
      barrier.arrive_and_wait();
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    for (auto& block : handed) block = blocks->allocate(0, 20'000, kA).value_or(0);
    barrier.arrive_and_wait();
    barrier.arrive_and_wait();
  }
  consumer.join();
  EXPECT_EQ(blocks->live_bytes(), 0u);
  EXPECT_LE(source.used_granules(), 3u);
}

TEST_F(ThreadsTest, EightThreadsWithTrimAndLookupsNeverShareABlock) {
  constexpr int kThreads = 8;
  constexpr int kSteps = 20'000;
  static constexpr std::array<std::size_t, 5> kSizes{200, 256, 3000, 60'000, 300'000};
  struct Held {
    std::uintptr_t block;
    std::size_t bytes;
  };
  std::mutex mutex;
  std::vector<Held> shared;  // allocated by one thread, freed by any
  std::atomic<int> collisions{0}, lost{0}, running{kThreads};
  std::atomic<std::uintptr_t> hint{FakeSource::kBase};

  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Held> mine;
    const auto release = [&](Held held) {
      const auto found = blocks->find(held.block + held.bytes - 1);
      if (!found || found->base != held.block || found->bytes != held.bytes) ++lost;
      vacate(held.block, held.bytes);
      if (!blocks->free(held.block, random() % 2 != 0 ? kA : kB)) ++lost;
    };
    for (int i = 0; i < kSteps; ++i) {
      if (random() % 2 != 0 && mine.size() < 40) {
        const std::size_t bytes = kSizes[random() % kSizes.size()];
        const auto block = blocks->allocate(0, bytes, random() % 2 != 0 ? kA : kB);
        if (!block) continue;
        if (!occupy(*block, bytes)) ++collisions;
        hint.store(*block, std::memory_order_relaxed);
        mine.push_back({*block, bytes});
      } else if (!mine.empty()) {
        std::swap(mine[random() % mine.size()], mine.back());
        const Held held = mine.back();
        mine.pop_back();
        if (random() % 4 != 0) {
          release(held);
          continue;
        }
        std::unique_lock lock(mutex);
        shared.push_back(held);
        const Held other = shared[random() % shared.size()];
        std::erase_if(shared, [&](const Held& candidate) { return candidate.block == other.block; });
        lock.unlock();
        release(other);
      }
    }
    for (const Held held : mine) release(held);
    --running;
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < kThreads; ++t) threads.emplace_back(work, t + 1);
    threads.emplace_back([&] {
      while (running > 0) {
        EXPECT_TRUE(blocks->trim());
        // Whatever is there now, a found block contains the address.
        const std::uintptr_t address = hint.load(std::memory_order_relaxed) + 100;
        const auto found = blocks->find(address);
        if (found && (address < found->base || address - found->base >= std::size_t{1} << 20)) ++lost;
      }
    });
  }
  for (const Held held : shared) EXPECT_TRUE(blocks->free(held.block, kA));
  EXPECT_EQ(collisions, 0);
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(blocks->live_bytes(), 0u);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(ThreadsTest, ThreadsMayEndWhileTheSuballocatorDoes) {
  for (int i = 0; i < 50; ++i) {
    std::barrier done(5);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        const auto block = blocks->allocate(0, 1000, kA);
        EXPECT_TRUE(block && blocks->free(*block, kA));
        done.arrive_and_wait();  // from here the thread ends
      });
    }
    done.arrive_and_wait();
    blocks.reset();
    threads.clear();
    EXPECT_EQ(source.used_granules(), 0u);
    blocks = make_suballocator(source, kGranules);
  }
}

}  // namespace
}  // namespace vmem::runtime::testing
