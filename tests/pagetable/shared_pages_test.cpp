// Which block covers a granule of shared pages, and which pages are dead.
#include "pagetable/shared_pages.hpp"

#include <gtest/gtest.h>

#include <memory>

#include "pagetable/address_space.hpp"

namespace vmem::pagetable {
namespace {

struct SharedPagesTest : ::testing::Test {
  std::unique_ptr<AddressSpace> space;
  Region* region = nullptr;  // four pages of four granules

  void SetUp() override {
    auto made = AddressSpace::create(std::uintptr_t{1} << 40, 64 * kGranuleBytes);
    ASSERT_TRUE(made) << made.error().message;
    space = std::move(*made);
    begin_region();
  }
  void begin_region() {
    auto added = space->add(16, 2);
    ASSERT_TRUE(added) << added.error().message;
    region = *added;
    space->sharing().begin_region(*region);
  }
  Span block(std::uint32_t first, std::uint32_t granules) const {
    return Span({region->first.index + first}, granules, Access::read);
  }
  SharedPages::Pages begin(std::uint32_t first, std::uint32_t granules) {
    return space->sharing().begin_block(*region, block(first, granules));
  }
  SharedPages::Pages end(std::uint32_t first, std::uint32_t granules) {
    return space->sharing().end_block(*region, block(first, granules));
  }
  Span at(std::uint32_t granule) const { return space->sharing().block_at(region->first.index + granule); }
};

TEST_F(SharedPagesTest, ABlockIsFoundAtEachOfItsGranules) {
  begin(3, 6);
  EXPECT_TRUE(at(2).empty());
  for (std::uint32_t granule = 3; granule < 9; ++granule) EXPECT_EQ(at(granule).word(), block(3, 6).word());
  EXPECT_TRUE(at(9).empty());
  end(3, 6);
  for (std::uint32_t granule = 0; granule < 16; ++granule) EXPECT_TRUE(at(granule).empty());
}

TEST_F(SharedPagesTest, APageDiesWithItsLastBlock) {
  EXPECT_TRUE(region->dead_page(1));
  EXPECT_EQ(begin(3, 2), SharedPages::Pages::changed);    // pages 0 and 1
  EXPECT_EQ(begin(5, 3), SharedPages::Pages::unchanged);  // page 1
  EXPECT_FALSE(region->dead_page(0));
  EXPECT_FALSE(region->dead_page(1));
  EXPECT_TRUE(region->dead_page(2));
  EXPECT_EQ(end(3, 2), SharedPages::Pages::changed);
  EXPECT_TRUE(region->dead_page(0));
  EXPECT_FALSE(region->dead_page(1));
  EXPECT_EQ(region->last_death(0), 2u);
  EXPECT_EQ(region->last_death(1), 1u) << "as when the region began";
  EXPECT_EQ(begin(0, 1), SharedPages::Pages::changed);
  EXPECT_FALSE(region->dead_page(0));
  EXPECT_EQ(region->last_death(0), 2u) << "a birth keeps the last death";
  EXPECT_EQ(end(5, 3), SharedPages::Pages::changed);
  EXPECT_EQ(region->last_death(1), 3u);
  EXPECT_EQ(region->life.load(), 3u);
}

TEST_F(SharedPagesTest, ARegionBeginsWithoutWhatLayThereBefore) {
  begin(0, 4);
  begin(4, 2);
  end(0, 4);
  space->remove(*region);
  begin_region();
  for (std::uint32_t page = 0; page < 4; ++page) {
    EXPECT_TRUE(region->dead_page(page));
    EXPECT_EQ(region->last_death(page), 1u);
    EXPECT_LT(region->pages[page].life, region->last_death(page)) << "nothing in it has a value";
  }
  EXPECT_TRUE(at(4).empty());
}

TEST_F(SharedPagesTest, WithoutSharingARegionDiesAsAWhole) {
  region->extent.sharing.store(nullptr);
  region->life = 7;
  region->dead = true;
  EXPECT_EQ(region->last_death(3), 7u);
  EXPECT_TRUE(region->dead_page(0));
}

// A log has only the lower half of a life.
TEST_F(SharedPagesTest, ALifeIsKnownByItsLowerHalf) {
  region->life = (std::uint64_t{5} << 32) + 3;
  EXPECT_EQ(region->whole_life(3), (std::uint64_t{5} << 32) + 3);
  EXPECT_EQ(region->whole_life(1), (std::uint64_t{5} << 32) + 1);
  EXPECT_EQ(region->whole_life(0xfffffffe), (std::uint64_t{4} << 32) + 0xfffffffe);
  region->life = 3;
  EXPECT_EQ(region->whole_life(0xffffffff), 0u) << "before the first";
}

}  // namespace
}  // namespace vmem::pagetable
