// Freed blocks: the streams that they serve, and when.
#include "runtime/memory/block_cache.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace vmem::runtime {
namespace {

using pagetable::Region;

class Marks final : public StreamMarks {
 public:
  std::set<std::uint64_t> completed;
  std::uint64_t last = 0;
  std::uintptr_t context() noexcept override { return 0; }
  Result<std::uint64_t> mark(const StreamId&) override { return ++last; }
  bool complete(std::uint64_t mark) override { return completed.contains(mark); }
};

struct Blocks : ::testing::Test {
  Marks marks;
  BlockCache cache{marks, 2};
  const StreamId one{reinterpret_cast<vmem_stream>(0x10), 0}, two{reinterpret_cast<vmem_stream>(0x20), 0};
  std::uint64_t bytes = std::uint64_t{4} << 20;

  // Null: none.
  Region* take(int device, std::uint64_t size, const StreamId& stream) {
    auto block = cache.take(device, size, stream);
    return block == nullptr ? nullptr : kept(std::move(block));
  }
  static Region* kept(BlockCache::Taken block) {
    Region* const region = block->region;
    BlockCache::forget(std::move(block));
    return region;
  }

  std::unique_ptr<Region> block(std::uint32_t granule, std::uint32_t pages = 1) {
    auto region = std::make_unique<Region>();
    region->first = {granule};
    region->page_shift = 1;
    region->page_count = pages;
    return region;
  }
};

TEST_F(Blocks, ServeTheStreamThatTheyWereFreedOn) {
  const auto a = block(1);
  cache.put(*a, one, {});
  EXPECT_EQ(take(0, bytes, two), nullptr);
  EXPECT_EQ(take(0, 2 * bytes, one), nullptr) << "another size";
  EXPECT_EQ(take(1, bytes, one), nullptr) << "another device";
  EXPECT_EQ(cache.bytes(0), bytes);
  EXPECT_EQ(take(0, bytes, one), a.get());
  EXPECT_EQ(cache.bytes(0), 0u);
  EXPECT_EQ(take(0, bytes, one), nullptr);
}

TEST_F(Blocks, TheLowestAddressFirstWhateverTheOrderOfFreeing) {
  const auto a = block(1), b = block(5), c = block(9);
  for (Region* each : {b.get(), c.get(), a.get()}) cache.put(*each, one, {});
  EXPECT_EQ(take(0, bytes, one), a.get());
  EXPECT_EQ(take(0, bytes, one), b.get());
  EXPECT_EQ(take(0, bytes, one), c.get());
}

TEST_F(Blocks, WithoutWorkUnderWayTheyServeAnyStream) {
  const auto a = block(1);
  cache.put(*a, std::nullopt, {});
  EXPECT_EQ(take(0, bytes, two), a.get());
}

TEST_F(Blocks, WaitForTheOtherStreamsThatUsedThem) {
  const auto a = block(1);
  cache.put(*a, std::nullopt, {7, 8});
  EXPECT_EQ(take(0, bytes, one), nullptr);
  marks.completed = {7};
  EXPECT_EQ(take(0, bytes, one), nullptr);
  marks.completed = {8};
  EXPECT_EQ(take(0, bytes, one), a.get()) << "each mark needs to be complete once";
}

TEST_F(Blocks, AfterTheStreamsEndTheyWaitForItsWork) {
  const auto a = block(1), b = block(5);
  cache.put(*a, one, {});
  cache.put(*b, one, {});
  ASSERT_TRUE(cache.close_stream(one));
  EXPECT_EQ(marks.last, 1u) << "one mark for all of them";
  EXPECT_EQ(take(0, bytes, one), nullptr) << "the handle may mean another stream now";
  marks.completed = {1};
  EXPECT_EQ(take(0, bytes, two), a.get());
}

TEST_F(Blocks, TheEldestAreGivenBackFirst) {
  const auto a = block(9), b = block(1), c = block(5, 2);
  for (Region* each : {a.get(), b.get(), c.get()}) cache.put(*each, one, {});
  const auto shrunk = [&](std::uint64_t to) {
    std::vector<Region*> regions;
    for (auto& each : cache.shrink(0, to)) regions.push_back(kept(std::move(each)));
    return regions;
  };
  EXPECT_EQ(shrunk(3 * bytes), (std::vector<Region*>{a.get()}));
  EXPECT_EQ(shrunk(3 * bytes), (std::vector<Region*>{}));
  EXPECT_EQ(shrunk(0), (std::vector<Region*>{b.get(), c.get()}));
  EXPECT_EQ(cache.bytes(0), 0u);
  EXPECT_EQ(take(0, bytes, one), nullptr);
}

TEST_F(Blocks, AreGivenBackOfOneDevice) {
  const auto a = block(1), b = block(5);
  a->device = 1;
  for (Region* each : {a.get(), b.get()}) cache.put(*each, one, {});
  auto shrunk = cache.shrink(0, 0);
  ASSERT_EQ(shrunk.size(), 1u);
  EXPECT_EQ(kept(std::move(shrunk.front())), b.get());
  EXPECT_EQ(cache.bytes(0), 0u);
  EXPECT_EQ(cache.bytes(1), bytes);
}

TEST_F(Blocks, ThatAreNotKeptGoBackAsTheyWereAndAreTheYoungest) {
  const auto a = block(1), b = block(5);
  cache.put(*a, std::nullopt, {7});
  cache.put(*b, one, {});
  {
    const auto oldest = cache.shrink(0, bytes);
    ASSERT_EQ(oldest.size(), 1u);
    EXPECT_EQ(oldest.front()->region, a.get());
    EXPECT_EQ(cache.bytes(0), bytes);
  }
  EXPECT_EQ(cache.bytes(0), 2 * bytes);
  EXPECT_EQ(take(0, bytes, two), nullptr) << "it still waits for the mark";
  EXPECT_EQ(kept(std::move(cache.shrink(0, bytes).front())), b.get());
  marks.completed = {7};
  EXPECT_EQ(take(0, bytes, two), a.get());
}

}  // namespace
}  // namespace vmem::runtime
