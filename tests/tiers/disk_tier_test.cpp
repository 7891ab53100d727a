// The disk tier over io_uring and a real file system.
#include "tiers/disk/disk_tier.hpp"

#include <gmock/gmock.h>
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

class UnregisteredDiskUnderTest : public DiskFixture {
 public:
  UnregisteredDiskUnderTest() : DiskFixture(kTierPage, 8 * kTierPage, unregistered_uring()) {}
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(UnregisteredDisk, TierConformance, UnregisteredDiskUnderTest);

// Polls as far as the kernel and the test's disk support it.
class PolledDisksUnderTest : public DiskFixture {
 public:
  PolledDisksUnderTest() : DiskFixture(kTierPage, 8 * kTierPage, uring(3, true), 2) {}
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(PolledDisks, TierConformance, PolledDisksUnderTest);

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

class CompressingDiskUnderTest : public DiskFixture {
 public:
  CompressingDiskUnderTest() : DiskFixture(kTierPage, 8 * kTierPage, uring(), 1, compression("lz4")) {}
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
};
INSTANTIATE_TYPED_TEST_SUITE_P(CompressingDisk, TierConformance, CompressingDiskUnderTest);

TEST(DiskTier, ACompressedPageIsReadBackAsItWas) {
  DiskFixture disk(kTierPage, 4 * kTierPage, uring(), 1, compression("shuffle4+zstd-huffman"));
  const SlotId slot = disk.slot();
  std::mt19937_64 random(1);
  fill_half(disk.memory(0), kTierPage, random);
  ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
  ASSERT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::done);
  EXPECT_EQ(std::memcmp(disk.memory(0), disk.memory(1), kTierPage), 0);
  EXPECT_EQ(disk.tier().compression().in_bytes, kTierPage);
  EXPECT_LT(disk.tier().compression().out_bytes, kTierPage * 3 / 4);
  EXPECT_EQ(disk.tier().punched_bytes(), 0u) << "the tier is not tight";
}

// Three of four slots are below the 0.85 at which a tier is tight, four above.
TEST(DiskTier, ATightTierGivesBackWhatCompressedPagesLeaveFreeAndTakesItAgain) {
  DiskFixture disk(kTierPage, 4 * kTierPage, uring(), 1, compression("lz4"));
  std::vector<SlotId> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(disk.slot());
  std::mt19937_64 random(1);
  fill_half(disk.memory(0), kTierPage, random);
  for (const SlotId slot : slots) ASSERT_EQ(disk.move(Direction::store, slot, 0, 1, slot).outcome, Outcome::done);
  const std::uint64_t punched = disk.tier().punched_bytes();
  EXPECT_GT(punched, 4 * kTierPage / 4);
  for (const SlotId slot : slots) ASSERT_EQ(disk.move(Direction::store, slot, 0, 2, slot).outcome, Outcome::done);
  EXPECT_EQ(disk.tier().punched_bytes(), punched) << "what is given back already";
  // A page that does not compress needs its whole slot again.
  for (std::uint64_t at = 0; at < kTierPage; at += 8) {
    const std::uint64_t word = random();
    std::memcpy(disk.memory(0) + at, &word, 8);
  }
  for (const SlotId slot : slots) {
    ASSERT_EQ(disk.move(Direction::store, slot, 0, 3, slot).outcome, Outcome::done);
    ASSERT_EQ(disk.move(Direction::load, slot, 1, 3, slot).outcome, Outcome::done);
    ASSERT_EQ(std::memcmp(disk.memory(0), disk.memory(1), kTierPage), 0);
  }
  fill_half(disk.memory(0), kTierPage, random);
  ASSERT_EQ(disk.move(Direction::store, slots[0], 0, 4, slots[0]).outcome, Outcome::done);
  EXPECT_GT(disk.tier().punched_bytes(), punched);
}

TEST(DiskTier, SaysWhichWayItTakes) {
  DiskFixture disk(kTierPage, 4 * kTierPage, uring(16));
  EXPECT_EQ(disk.tier().describe(), "io_uring, depth 16, registered files");
  DiskFixture polled(kTierPage, 4 * kTierPage, uring(16, true));
  EXPECT_THAT(polled.tier().describe(),
              testing::AnyOf("io_uring, depth 16, registered files, requests polled",
                             "io_uring, depth 16, registered files, requests and disks polled",
                             "io_uring, depth 16, registered files"))
      << "what the kernel and the disk of the test allow";
}

TEST(DiskTier, GoesOnWhereNothingCanBeRegistered) {
  for (const bool poll : {false, true}) {
    DiskFixture disk(kTierPage, 4 * kTierPage, unregistered_uring(poll));
    EXPECT_EQ(disk.tier().describe(), "io_uring, depth 32") << "polling wants registered files";
    const SlotId slot = disk.slot();
    disk.fill(0, 7);
    ASSERT_EQ(disk.move(Direction::store, slot, 0, 1).outcome, Outcome::done);
    ASSERT_EQ(disk.move(Direction::load, slot, 1, 1).outcome, Outcome::done);
    EXPECT_TRUE(disk.holds(1, 7));
  }
}

}  // namespace
}  // namespace vmem::tiers
