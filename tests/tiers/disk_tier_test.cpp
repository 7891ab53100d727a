// The disk tier over io_uring and a real file system.
#include "tiers/disk/disk_tier.hpp"

#include <gtest/gtest.h>

#include "tiers/disk_fixture.hpp"
#include "tiers/tier_conformance.hpp"

namespace vmem::tiers {
namespace {

class DiskUnderTest : public DiskFixture {
 public:
  DiskUnderTest() : DiskFixture(kTierPage, 8 * kTierPage, uring()) {}
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Disk, TierConformance, DiskUnderTest);

class TwoDisksUnderTest : public DiskFixture {
 public:
  TwoDisksUnderTest() : DiskFixture(kTierPage, 8 * kTierPage, uring(3), 2) {}
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(TwoDisks, TierConformance, TwoDisksUnderTest);

TEST(DiskTier, APageIsLoadedOnlyAsTheVersionThatWasStored) {
  DiskFixture disk(kTierPage, 4 * kTierPage, uring());
  const SlotId slot = disk.slot();
  disk.fill(0, 7);
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 5).outcome, Outcome::done);
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 4).outcome, Outcome::lost) << "an older version";
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 5, 1).outcome, Outcome::lost) << "another page";
  EXPECT_EQ(disk.move(Direction::load, slot, 1, 5).outcome, Outcome::done);
  EXPECT_TRUE(disk.holds(1, 7));
}

TEST(DiskTier, SaysWhichWayItTakes) {
  DiskFixture disk(kTierPage, 4 * kTierPage, uring(16));
  EXPECT_EQ(disk.tier().describe(), "io_uring, depth 16, registered files");
}

}  // namespace
}  // namespace vmem::tiers
