#include "runtime/suballocator.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "runtime/suballocator/fake_source.hpp"
#include "runtime/suballocator/slab_pool.hpp"
#include "runtime/suballocator/thread_cache.hpp"

namespace vmem::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class SuballocatorTest : public ::testing::Test {
 protected:
  std::uintptr_t allocate(std::size_t bytes, vmem_stream on = kA, int device = 0) {
    const auto block = blocks->allocate(device, bytes, on);
    EXPECT_TRUE(block) << block.error().message;
    return block.value_or(0);
  }
  void free(std::uintptr_t block, vmem_stream on = kA) {
    const auto freed = blocks->free(block, on);
    EXPECT_TRUE(freed) << freed.error().message;
  }
  std::string refusal(std::uintptr_t address) {
    const auto freed = blocks->free(address, kA);
    if (freed) return "accepted";
    EXPECT_EQ(freed.error().status, VMEM_ERROR_INVALID_POINTER);
    return freed.error().message;
  }

  FakeSource source;
  std::unique_ptr<Suballocator> blocks = make_suballocator(source);
};

TEST_F(SuballocatorTest, BlocksAreAlignedBackedAndFound) {
  for (const std::size_t bytes : {1u, 256u, 257u, 5000u, 65536u, 700'000u, 1u << 20}) {
    const std::uintptr_t block = allocate(bytes, kA, 3);
    EXPECT_EQ(block % 256, 0u);
    EXPECT_TRUE(source.backs(block, bytes, 3));
    for (const std::uintptr_t inside : {block, block + bytes / 2, block + bytes - 1}) {
      const auto found = blocks->find(inside);
      ASSERT_TRUE(found) << bytes;
      EXPECT_EQ(found->base, block);
      EXPECT_EQ(found->bytes, bytes);
      EXPECT_EQ(found->device, 3);
    }
    free(block);
    EXPECT_FALSE(blocks->find(block));
  }
}

TEST_F(SuballocatorTest, SizesAndDevicesOutOfRangeAreRefused) {
  for (const std::size_t bytes :
       {std::size_t{0}, Suballocator::kLargestBytes + 1, std::numeric_limits<std::size_t>::max()}) {
    const auto block = blocks->allocate(0, bytes, kA);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().status, VMEM_ERROR_INVALID_VALUE);
    EXPECT_THAT(block.error().message, HasSubstr(fmt::format("not {}", bytes)));
  }
  for (const int device : {-1, Suballocator::kMaxDevices}) {
    const auto block = blocks->allocate(device, 1, kA);
    ASSERT_FALSE(block);
    EXPECT_EQ(block.error().status, VMEM_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(SuballocatorTest, UnalignedSpaceIsRefused) {
  EXPECT_FALSE(Suballocator::create(source, source, FakeSource::kBase + 4096, 64 << 20));
  EXPECT_FALSE(Suballocator::create(source, source, FakeSource::kBase, (64 << 20) + 4096));
}

TEST_F(SuballocatorTest, DevicesDoNotShareSlabs) {
  const std::uintptr_t first = allocate(256, kA, 0);
  const std::uintptr_t second = allocate(256, kA, 1);
  EXPECT_NE(first >> 21, second >> 21);
  EXPECT_TRUE(source.backs(first, 256, 0));
  EXPECT_TRUE(source.backs(second, 256, 1));
}

TEST_F(SuballocatorTest, WrongFreesAreRefusedAndSayWhatTheAddressIs) {
  const std::uintptr_t block = allocate(1000);
  const std::uintptr_t slab = block & ~(FakeSource::kGranule - 1);
  EXPECT_THAT(refusal(block + 256), AllOf(HasSubstr(fmt::format("{:#x} lies 256 bytes inside", block + 256)),
                                          HasSubstr(fmt::format("allocation of 1000 bytes at {:#x}", block))));
  EXPECT_THAT(refusal(block + 1), HasSubstr("lies 1 bytes inside the allocation of 1000 bytes"));
  EXPECT_THAT(refusal(slab + 1500 * 1024 + 300),
              AllOf(HasSubstr("lies 300 bytes inside the block of 1 KiB"), HasSubstr("which is free")));
  EXPECT_THAT(refusal(FakeSource::kBase - 256), HasSubstr("is not the address of a small allocation"));
  EXPECT_THAT(refusal(0), HasSubstr("0x0 is not the address"));
  EXPECT_THAT(refusal(slab + (1 << 30)), HasSubstr("is not the address of a small allocation"));
  free(block);
  EXPECT_THAT(refusal(block),
              AllOf(HasSubstr(fmt::format("{:#x} is already free", block)), HasSubstr("a block of 1 KiB on device 0")));
  EXPECT_EQ(blocks->live_bytes(), 0u);
}

TEST_F(SuballocatorTest, AddressPastTheLastBlockIsNamed) {
  const std::uintptr_t block = allocate(768);  // 2730 blocks leave a tail of 512 bytes
  const std::uintptr_t slab = block & ~(FakeSource::kGranule - 1);
  EXPECT_THAT(refusal(slab + FakeSource::kGranule - 512),
              AllOf(HasSubstr("past the last of the 2730 blocks"), HasSubstr("768 B")));
  EXPECT_FALSE(blocks->find(slab + FakeSource::kGranule - 1));
  free(block);
}

TEST_F(SuballocatorTest, FreeOfABlockWhoseSlabWasGivenBackIsRefused) {
  const std::uintptr_t block = allocate(1000);
  free(block);
  source.finish(kA);
  source.always_complete = true;
  ASSERT_TRUE(blocks->trim());
  EXPECT_THAT(refusal(block), HasSubstr("is not the address of a small allocation"));
}

TEST_F(SuballocatorTest, LiveBytesAreThoseAskedFor) {
  const std::uintptr_t first = allocate(1);
  const std::uintptr_t second = allocate(1'000'000);
  EXPECT_EQ(blocks->live_bytes(), 1'000'001u);
  free(first);
  EXPECT_EQ(blocks->live_bytes(), 1'000'000u);
  std::thread([&] { free(second); }).join();
  EXPECT_EQ(blocks->live_bytes(), 0u);
}

TEST_F(SuballocatorTest, RepeatedPairAsksTheSourceOnce) {
  for (int i = 0; i < 10'000; ++i) free(allocate(4000));
  EXPECT_EQ(source.allocations, 1);
  EXPECT_EQ(source.marks, 0);
}

TEST_F(SuballocatorTest, FailingSourceChangesNothing) {
  source.failing_allocations = 1'000;
  const auto block = blocks->allocate(0, 1000, kA);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(block.error().message, HasSubstr("the test has no slabs"));
  EXPECT_EQ(blocks->live_bytes(), 0u);
  EXPECT_EQ(blocks->slab_bytes(), 0u);
  source.failing_allocations = 0;
  free(allocate(1000));
}

TEST_F(SuballocatorTest, FullSourceIsServedFromWhatOtherClassesLeft) {
  FakeSource small(4);
  blocks = make_suballocator(small);
  small.always_complete = true;
  std::vector<std::uintptr_t> held;
  for (int i = 0; i < 4 * 8; ++i) held.push_back(allocate(256 << 10));
  for (const std::uintptr_t block : held) free(block, kB);
  // Needs another class on another stream, while slabs of the first class fill the address space.
  const std::uintptr_t block = allocate(700'000);
  EXPECT_TRUE(small.backs(block, 700'000, 0));
  free(block);
  blocks.reset();  // before its source
}

TEST_F(SuballocatorTest, WhollyFreeSlabsAreKeptUpToABoundAndGivenBackBeyondIt) {
  source.always_complete = true;
  std::vector<std::uintptr_t> held;
  for (int i = 0; i < 64; ++i) held.push_back(allocate(1 << 20));
  EXPECT_EQ(blocks->slab_bytes(), 64u << 20);
  for (const std::uintptr_t block : held) free(block);
  // The thread's cache may also keep blocks, and so their slabs.
  const std::size_t most = source.spare_bytes(0) / kGranuleBytes;
  EXPECT_LE(source.used_granules(), most + 2 * (ThreadCache::kMostBytes >> 20));
  EXPECT_GE(source.used_granules(), most / 2);
  const int asked = source.allocations;
  for (int round = 0; round < 100; ++round) {
    held.clear();
    for (int i = 0; i < 6; ++i) held.push_back(allocate(1 << 20));
    for (const std::uintptr_t block : held) free(block);
  }
  EXPECT_EQ(source.allocations, asked);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
  EXPECT_EQ(blocks->slab_bytes(), 0u);
}

TEST_F(SuballocatorTest, SlabThatCannotBeGivenBackIsKeptAndServes) {
  source.always_complete = true;
  free(allocate(1000));
  source.failing_frees = 1;
  const auto trimmed = blocks->trim();
  ASSERT_FALSE(trimmed);
  EXPECT_EQ(trimmed.error().status, VMEM_ERROR_DRIVER);
  EXPECT_EQ(blocks->slab_bytes(), FakeSource::kGranule);
  const int asked = source.allocations;
  const std::uintptr_t block = allocate(300'000);
  EXPECT_EQ(source.allocations, asked);
  free(block);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(SuballocatorTest, TrimTakesBackWhatOtherThreadsCache) {
  source.always_complete = true;
  std::uintptr_t again = 0;
  std::thread([&] {
    free(allocate(1000));
    std::thread([&] { EXPECT_TRUE(blocks->trim()); }).join();
    EXPECT_EQ(source.used_granules(), 0u);
    again = allocate(1000);  // the cache noticed that its blocks are gone
    EXPECT_TRUE(source.backs(again, 1000, 0));
  }).join();
  free(again);
}

TEST_F(SuballocatorTest, ThreadThatEndsLeavesNothingCached) {
  source.always_complete = true;
  std::thread([&] { free(allocate(1000)); }).join();
  EXPECT_EQ(blocks->live_bytes(), 0u);
  EXPECT_EQ(source.marks, 1);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(SuballocatorTest, ThreadOutlivesManySuballocators) {
  for (int i = 0; i < 50; ++i) {
    free(allocate(1000));
    const std::uintptr_t live = allocate(2000);
    EXPECT_TRUE(blocks->find(live));
    blocks = make_suballocator(source);
    EXPECT_EQ(source.used_granules(), 0u);
    EXPECT_FALSE(blocks->find(live));
  }
}

TEST_F(SuballocatorTest, TwoSuballocatorsInOneThreadKeepApart) {
  FakeSource other_source;
  const auto other = make_suballocator(other_source);
  for (int i = 0; i < 100; ++i) {
    const std::uintptr_t here = allocate(1000);
    const auto there = other->allocate(0, 1000, kA);
    ASSERT_TRUE(there);
    free(here);
    ASSERT_TRUE(other->free(*there, kA));
  }
  EXPECT_EQ(source.allocations, 1);
  EXPECT_EQ(other_source.allocations, 1);
}

// Frees a block during thread exit, before or after the cache's destruction.
struct FreesAtThreadExit {
  Suballocator* blocks = nullptr;
  std::uintptr_t block = 0;
  ~FreesAtThreadExit() {
    if (blocks == nullptr) return;
    EXPECT_TRUE(blocks->free(block, kA));
    const auto again = blocks->allocate(0, 3000, kPerThread);
    EXPECT_TRUE(again && blocks->free(*again, kPerThread));
  }
};
thread_local FreesAtThreadExit at_exit;

TEST_F(SuballocatorTest, BlocksCanBeFreedWhileAThreadEnds) {
  source.always_complete = true;
  std::thread([&] {
    at_exit.blocks = blocks.get();  // constructed first, so destroyed after the cache
    at_exit.block = allocate(1000);
  }).join();
  EXPECT_EQ(blocks->live_bytes(), 0u);
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(SuballocatorTest, MoreStreamsThanACacheHasShelvesStillWork) {
  source.always_complete = true;
  for (int round = 0; round < 3; ++round) {
    for (std::uintptr_t s = 1; s <= 100; ++s) free(allocate(1000, stream(s << 12)), stream(s << 12));
  }
  ASSERT_TRUE(blocks->trim());
  EXPECT_EQ(source.used_granules(), 0u);
}

TEST_F(SuballocatorTest, MetadataIsAtMostOnePercentOfFullSlabs) {
  const std::size_t before = blocks->metadata_bytes();
  free(allocate(1));
  const std::size_t with_cache = blocks->metadata_bytes();
  for (int i = 0; i < 64 * 8192; ++i) allocate(256);
  const std::size_t grown = blocks->metadata_bytes() - with_cache;
  EXPECT_LE(grown * 100, blocks->slab_bytes());
  EXPECT_LE(with_cache - before, 64u << 10);
  RecordProperty("metadata_bytes_per_mib_of_slabs", int(grown / (blocks->slab_bytes() >> 20)));
}

}  // namespace
}  // namespace vmem::runtime::testing
