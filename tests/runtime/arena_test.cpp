// Blocks that share pages: where they are placed, when their memory is used again, and that nothing
// of a neighbour is lost.
#include "runtime/memory/arena.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <latch>
#include <memory>
#include <random>
#include <ranges>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::LaunchHolds;
using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 16 * kMiB;

struct Arena : ::testing::Test {
  EmulatedGpu gpu{"devices=1,hbm=2GiB,host=1GiB"};
  std::unique_ptr<Runtime> runtime;
  LaunchHolds holds;

  void SetUp() override { start(128 * kMiB); }
  void start(std::uint64_t hbm_bytes, std::uint64_t host_bytes = 512 * kMiB, std::uint64_t space_bytes = 65536 * kMiB) {
    stop();
    Options options;
    options.space_bytes = space_bytes;
    options.devices = {0};
    options.hbm_bytes = hbm_bytes;
    options.host_bytes = host_bytes;
    options.page_bytes = kPage;
    options.acquire_wait_us = 20'000;
    auto made = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
  }
  void stop() {
    if (!runtime) return;
    EXPECT_TRUE(runtime->shut_down());
    runtime.reset();
  }
  void TearDown() override { stop(); }

  std::byte* allocate(std::size_t mib, CUstream stream = nullptr) {
    const auto block = runtime->blocks().allocate(mib * kMiB, 0, stream);
    EXPECT_TRUE(block) << block.error().message;
    return block ? static_cast<std::byte*>(*block) : nullptr;
  }
  void free(std::byte* block, CUstream stream = nullptr) {
    const auto freed = runtime->blocks().free(block, std::optional<vmem_stream>(stream));
    EXPECT_TRUE(freed) << freed.error().message;
  }
  template <class Body>
  void launch(const std::vector<std::byte*>& named, CUstream stream, Body body) {
    std::vector<std::uintptr_t> addresses;
    for (std::byte* const each : named) addresses.push_back(reinterpret_cast<std::uintptr_t>(each));
    auto ready = runtime->launches().begin(addresses, stream, false, holds);
    ASSERT_TRUE(ready) << ready.error().message;
    ASSERT_EQ(gpu.launch(stream, 0, body), CUDA_SUCCESS);
    ASSERT_TRUE(runtime->launches().end(holds));
  }
  void fill(std::byte* block, std::size_t mib, int value, CUstream stream = nullptr) {
    launch({block}, stream, [=] { std::memset(block, value, mib * kMiB); });
  }
  void expect(std::byte* block, std::size_t mib, int value, CUstream stream = nullptr) {
    bool same = false;
    launch({block}, stream, [=, &same] {
      same = std::all_of(block, block + mib * kMiB, [&](std::byte each) { return each == std::byte(value); });
    });
    gpu.synchronize(stream);
    EXPECT_TRUE(same) << "not all " << value;
  }
  vmem_statistics statistics() {
    vmem_statistics found{};
    EXPECT_TRUE(runtime->statistics(found));
    return found;
  }
};

TEST_F(Arena, BlocksLieSideBySide) {
  std::byte* const first = allocate(6);
  std::byte* const second = allocate(3);
  EXPECT_EQ(second, first + 6 * kMiB);
  const auto seen = runtime->addresses().allocation_at(reinterpret_cast<std::uintptr_t>(second) + 3 * kMiB);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->base, reinterpret_cast<std::uintptr_t>(second));
  EXPECT_EQ(seen->bytes, 4 * kMiB) << "rounded up to granules of 2 MiB";
  EXPECT_EQ(statistics().allocated_bytes, 10 * kMiB);
  free(first);
  free(second);
  EXPECT_EQ(statistics().allocated_bytes, 0u);
}

TEST_F(Arena, FreedNeighboursServeALargerBlock) {
  std::byte* const first = allocate(4);
  std::byte* const second = allocate(4);
  std::byte* const third = allocate(8);
  free(first);
  free(second);
  EXPECT_EQ(allocate(8), first);
  free(third);
  EXPECT_EQ(allocate(8), third);
}

// What lies where follows from the order of calls: a program that repeats itself gets the same
// addresses.
TEST_F(Arena, ARepeatedSequenceGetsTheSameAddresses) {
  std::vector<std::vector<std::byte*>> rounds;
  std::byte* const kept = allocate(10);
  for (int round = 0; round < 3; ++round) {
    auto& blocks = rounds.emplace_back();
    for (const std::size_t mib : {2, 20, 6, 14, 4, 30}) blocks.push_back(allocate(mib));
    for (const std::size_t index : {1, 3, 0, 5, 2, 4}) free(blocks[index]);
  }
  EXPECT_EQ(rounds[1], rounds[2]);
  free(kept);
}

// Work on the stream waits until the gate opens.
struct Gate {
  std::latch latch{1};
  void close(EmulatedGpu& gpu, CUstream stream) {
    ASSERT_EQ(gpu.cu().cuLaunchHostFunc(
                  stream, [](void* gate) { static_cast<std::latch*>(gate)->wait(); }, &latch),
              CUDA_SUCCESS);
  }
  void open() { latch.count_down(); }
};

// As a program's own thread and PyTorch's backward thread do.
TEST_F(Arena, ThreadsOfOneStreamThatNeedPagesAtOnceGetNoMoreThanTheirRegionHas) {
  start(1024 * kMiB, 512 * kMiB, 4096 * kMiB);  // regions of 64 MiB: four pages
  constexpr int kThreads = 4, kRounds = 12;
  std::array<std::vector<std::byte*>, kThreads> blocks;
  std::barrier round(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& own : blocks) {
      threads.emplace_back([&] {
        gpu.make_current(0);
        for (int i = 0; i < kRounds; ++i) {
          round.arrive_and_wait();
          own.push_back(allocate(16));
        }
      });
    }
  }
  std::set<std::byte*> distinct;
  const auto& space = runtime->space();
  for (std::byte* const block : std::views::join(blocks)) {
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(distinct.insert(block).second);
    const auto* const region = space.region_at(space.granule_at(reinterpret_cast<std::uintptr_t>(block)));
    ASSERT_NE(region, nullptr);
    EXPECT_LE(region->extent.begun_pages, region->page_count);
  }
}

TEST_F(Arena, MemoryThatAnotherStreamUsesWaitsForItsWork) {
  const CUstream own = gpu.create_stream(0), other = gpu.create_stream(0);
  std::byte* const block = allocate(16, own);
  fill(block, 16, 1, own);
  EXPECT_TRUE(runtime->blocks().record_stream(block, other));
  Gate gate;
  gate.close(gpu, other);
  free(block, own);
  gpu.synchronize(own);
  EXPECT_NE(allocate(16, own), block) << "the other stream's work is not complete";
  gate.open();
  gpu.synchronize(other);
  EXPECT_EQ(allocate(16, own), block);
  for (CUstream stream : {own, other}) EXPECT_TRUE(runtime->close_stream(stream));
}

TEST_F(Arena, WhatIsFreedOnAStreamServesThatStream) {
  const CUstream own = gpu.create_stream(0), other = gpu.create_stream(0);
  std::byte* const block = allocate(16, own);
  Gate gate;
  gate.close(gpu, own);
  fill(block, 16, 1, own);
  free(block, other);
  EXPECT_NE(allocate(16, own), block);
  EXPECT_EQ(allocate(16, other), block);
  gate.open();
  gpu.synchronize(own);
  for (CUstream stream : {own, other}) EXPECT_TRUE(runtime->close_stream(stream));
}

TEST_F(Arena, WhatAnEndedStreamLeftServesTheNextOnceItsWorkIsComplete) {
  const CUstream ended = gpu.create_stream(0);
  std::byte* const block = allocate(16, ended);
  std::byte* const later = allocate(16, ended);
  Gate gate;
  gate.close(gpu, ended);
  fill(block, 16, 1, ended);
  free(block, ended);
  EXPECT_TRUE(runtime->close_stream(ended));
  const CUstream next = gpu.create_stream(0);
  std::byte* const meanwhile = allocate(16, next);
  EXPECT_NE(meanwhile, block);
  free(later, ended);  // PyTorch names the stream of the allocation, ended or not
  EXPECT_NE(allocate(16, next), later);
  gate.open();
  gpu.synchronize(ended);
  const std::set<std::byte*> reused{allocate(16, next), allocate(16, next)};
  EXPECT_EQ(reused, (std::set<std::byte*>{block, later}));
  EXPECT_TRUE(runtime->close_stream(next));
}

TEST_F(Arena, OnlyTheFirstAddressOfALiveBlockIsFreed) {
  std::byte* const block = allocate(8);
  const auto refused = [&](std::byte* at) {
    const auto freed = runtime->blocks().free(at, std::optional<vmem_stream>(nullptr));
    return !freed && freed.error().status == VMEM_ERROR_INVALID_POINTER;
  };
  EXPECT_TRUE(refused(block + 1));
  EXPECT_TRUE(refused(block + 2 * kMiB));
  EXPECT_TRUE(refused(block + 8 * kMiB));
  free(block);
  EXPECT_TRUE(refused(block));
}

// Its pages leave HBM and come back with what both blocks hold, though launches name only one.
TEST_F(Arena, ABlockKeepsItsBytesWhileItsNeighboursChangeAndDie) {
  std::byte* const kept = allocate(6);
  fill(kept, 6, 1);
  for (int round = 2; round < 8; ++round) {
    std::byte* const neighbour = allocate(10);
    ASSERT_EQ(neighbour, kept + 6 * kMiB);
    fill(neighbour, 10, round);
    std::vector<std::byte*> others;
    for (int i = 0; i < 12; ++i) {
      others.push_back(allocate(kPage / kMiB));
      fill(others.back(), kPage / kMiB, 100 + i);
    }
    expect(neighbour, 10, round);
    expect(kept, 6, 1);
    for (int i = 0; i < 12; ++i) expect(others[std::size_t(i)], kPage / kMiB, 100 + i);
    for (std::byte* const other : others) free(other);
    free(neighbour);
  }
  EXPECT_GT(statistics().evictions, 0u);
  expect(kept, 6, 1);
}

// Blocks of a page's size: a page that holds nothing leaves without a copy.
TEST_F(Arena, PagesWithoutABlockLeaveWithoutACopy) {
  std::vector<std::byte*> first, second;
  for (int i = 0; i < 6; ++i) fill(first.emplace_back(allocate(16)), 16, i);
  gpu.synchronize(nullptr);
  for (std::byte* const block : first) free(block);
  const CUstream other = gpu.create_stream(0);
  std::byte* const larger = allocate(112, other);
  const std::uint64_t out = statistics().migrated_out_bytes;
  fill(larger, 112, 9, other);
  gpu.synchronize(other);
  EXPECT_EQ(statistics().migrated_out_bytes, out);
  EXPECT_GT(statistics().dead_evictions, 0u);
  expect(larger, 112, 9, other);
  EXPECT_TRUE(runtime->close_stream(other));
}

// A kernel may get the end of its memory. What lies there is not committed yet.
TEST_F(Arena, APointerBehindTheLastBlockMapsNothing) {
  std::byte* const block = allocate(16);
  launch({block, block + 16 * kMiB, block + 40 * kMiB}, nullptr, [] {});
  gpu.synchronize(nullptr);
  const auto& space = runtime->space();
  const auto& region = *space.region_at(space.granule_at(reinterpret_cast<std::uintptr_t>(block)));
  EXPECT_EQ(region.extent.begun_pages, 1u);
  EXPECT_EQ(region.unreadable, 0u);
  std::byte* const next = allocate(16);
  EXPECT_EQ(next, block + 16 * kMiB);
  fill(next, 16, 1);
  expect(next, 16, 1);
  EXPECT_EQ(region.unreadable, 0u);
}

// A copy over a whole block needs none of its old bytes, but its neighbours' bytes in the page.
TEST_F(Arena, ACopyOverABlockKeepsItsNeighbours) {
  std::byte* const first = allocate(4);
  std::byte* const second = allocate(4);
  std::byte* const third = allocate(16);
  for (auto [block, mib, value] : {std::tuple(first, 4, 1), std::tuple(second, 4, 2), std::tuple(third, 16, 3)})
    fill(block, std::size_t(mib), value);
  std::vector<std::byte*> others;
  for (int i = 0; i < 8; ++i) fill(others.emplace_back(allocate(16)), 16, 9);
  gpu.synchronize(nullptr);
  const std::vector<std::byte> host(16 * kMiB, std::byte{7});
  EXPECT_TRUE(runtime->copies().copy(first, host.data(), 4 * kMiB, nullptr));
  EXPECT_TRUE(runtime->copies().copy(third, host.data(), 16 * kMiB, nullptr));
  gpu.synchronize(nullptr);
  expect(first, 4, 7);
  expect(second, 4, 2);
  expect(third, 16, 7);
}

TEST_F(Arena, MemoryOfOtherSizesIsGivenBackWhenItIsNeeded) {
  start(128 * kMiB, 128 * kMiB);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocate(16));
  for (std::byte* const block : blocks) free(block);
  EXPECT_EQ(runtime->blocks().cached_bytes(0), 160 * kMiB);
  // A region of its own, for which the shared ones have to end.
  start(128 * kMiB, 384 * kMiB);
  for (std::byte*& block : blocks) block = allocate(16);
  for (std::byte* const block : blocks) free(block);
  std::byte* const larger = allocate(300);
  ASSERT_NE(larger, nullptr);
  EXPECT_LT(runtime->blocks().cached_bytes(0), 160 * kMiB);
}

// Its pages without a block are given up, though the region cannot end.
TEST_F(Arena, WithoutOtherMemoryAStreamGetsTheRoomOfWhatAnotherHasFreed) {
  start(128 * kMiB, 128 * kMiB);
  const CUstream own = gpu.create_stream(0), other = gpu.create_stream(0);
  std::byte* const kept = allocate(2, own);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(allocate(16, own));
  for (std::byte* const block : blocks) free(block, own);
  for (int i = 0; i < 9; ++i) ASSERT_NE(allocate(16, other), nullptr) << i;
  free(kept, own);
  for (CUstream stream : {own, other}) EXPECT_TRUE(runtime->close_stream(stream));
}

TEST_F(Arena, EmptyCacheLeavesOnlyWhatBlocksNeed) {
  std::byte* const kept = allocate(16);
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(allocate(20));
  for (std::byte* const block : blocks) free(block);
  EXPECT_TRUE(runtime->blocks().empty_cache());
  EXPECT_EQ(statistics().committed_bytes, kPage);
  EXPECT_EQ(runtime->blocks().cached_bytes(0), 0u);
  // Given up, but still a place for blocks.
  EXPECT_EQ(allocate(20), blocks[0]);
  EXPECT_EQ(statistics().committed_bytes, 3 * kPage);
  free(blocks[0]);
  free(kept);
  EXPECT_TRUE(runtime->blocks().empty_cache());
  EXPECT_EQ(runtime->blocks().cached_bytes(0), 0u);
  EXPECT_EQ(statistics().committed_bytes, 0u);
}

TEST_F(Arena, VmemFreeDoesNotTakeABlock) {
  std::byte* const block = allocate(4);
  std::byte* const neighbour = allocate(4);
  const auto refused = runtime->allocations().free(block, nullptr);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_POINTER);
  fill(neighbour, 4, 5);
  expect(neighbour, 4, 5);
}

// Pages without a block are given up when memory is short. So what is committed stays near what is
// live (1,000 MiB), though the gaps between blocks grow.
TEST_F(Arena, RandomSizesWasteLittle) {
  start(1024 * kMiB, 512 * kMiB);
  std::mt19937_64 random(7);
  std::vector<std::pair<std::byte*, std::size_t>> live;
  std::uint64_t live_mib = 0;
  for (int step = 0; step < 200'000; ++step) {
    const std::size_t mib = 2 * (1 + (random() % 4 == 0 ? random() % 40 : random() % 6));
    while (live_mib + mib > 1000) {
      const std::size_t which = random() % live.size();
      free(live[which].first);
      live_mib -= live[which].second;
      live[which] = live.back();
      live.pop_back();
    }
    live.emplace_back(allocate(mib), mib);
    live_mib += mib;
    if (HasFailure()) return;
    if (step % 1000 != 0 || step == 0) continue;
    ASSERT_TRUE(runtime->blocks().empty_cache());
    ASSERT_LE(statistics().committed_bytes, 1300 * kMiB) << step;
  }
}

}  // namespace
}  // namespace vmem::test
