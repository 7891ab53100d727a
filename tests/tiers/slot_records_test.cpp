// What a tier knows of its slots' bytes: memory for the sums of pieces, and what the GPU counted.
#include "tiers/slot_records.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tiers/tier_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

struct SlotRecordsTest : ::testing::Test {
  TierMachine machine{"devices=1,hbm=64MiB,host=64MiB"};
};

TEST_F(SlotRecordsTest, SumsOfPiecesAreReusedAndSplit) {
  PieceSums sums;
  ASSERT_TRUE(sums.create(machine.driver, 8 * kMiB));
  const auto large = sums.take(4 * kMiB), first = sums.take(2 * kMiB), second = sums.take(2 * kMiB);
  EXPECT_EQ(large.size(), 64u);
  EXPECT_EQ(first.size(), 32u);
  EXPECT_TRUE(first.data() == large.data() + 64 && second.data() == first.data() + 32) << "they do not overlap";
  EXPECT_TRUE(sums.take(2 * kMiB).empty());
  sums.give_back(first);
  EXPECT_TRUE(sums.take(4 * kMiB).empty());
  EXPECT_EQ(sums.take(2 * kMiB).data(), first.data());
  sums.give_back(large);
  EXPECT_EQ(sums.take(2 * kMiB).data(), large.data());
  EXPECT_EQ(sums.take(2 * kMiB).data(), large.data() + 32);
  EXPECT_TRUE(sums.take(2 * kMiB).empty());
  sums.reset();
}

TEST_F(SlotRecordsTest, ASlotGetsSumsOfItsSize) {
  SlotRecords records;
  ASSERT_TRUE(records.create(machine.driver, 2));
  records.begin_learning(0, 4 * kMiB);
  const gpu::Fingerprint* const all = records.pieces(0);
  ASSERT_NE(all, nullptr);
  records.begin_learning(1, 2 * kMiB);
  EXPECT_EQ(records.pieces(1), nullptr) << "all are taken";
  records.begin_learning(0, 2 * kMiB);
  records.begin_learning(1, 2 * kMiB);
  EXPECT_EQ(records.pieces(0), all);
  EXPECT_EQ(records.pieces(1), all + 32);
  records.reset();
}

TEST_F(SlotRecordsTest, AFingerprintIsKnownOnceItsLoadHasEnded) {
  SlotRecords records;
  ASSERT_TRUE(records.create(machine.driver, 4));
  records.begin_learning(3, 2 * kMiB);
  EXPECT_FALSE(records.known(3));
  records.learning(3, 7);
  EXPECT_TRUE(records.known(3));
  EXPECT_FALSE(records.fingerprint(3));
  records.learned(3, 6);
  EXPECT_FALSE(records.fingerprint(3)) << "another load";
  records.learned(3, 7);
  EXPECT_TRUE(records.fingerprint(3));
  records.forget(3);
  EXPECT_FALSE(records.known(3));
  records.learned(3, 7);
  EXPECT_FALSE(records.fingerprint(3));
  records.reset();
}

TEST_F(SlotRecordsTest, ChangesAreToldOnce) {
  SlotRecords records;
  ASSERT_TRUE(records.create(machine.driver, 1));
  EXPECT_EQ(records.changed_bytes(0), std::nullopt);
  records.of(0)->changed_words = 100;
  EXPECT_EQ(records.changed_bytes(0), std::nullopt) << "not counted yet";
  records.of(0)->changes = 1;
  EXPECT_EQ(records.changed_bytes(0), 800u);
  EXPECT_EQ(records.changed_bytes(0), std::nullopt);
  records.of(0)->changed_words += 1;
  records.of(0)->changes += 2;
  EXPECT_EQ(records.changed_bytes(0), 8u);
  EXPECT_EQ(records.changed_bytes(5), std::nullopt) << "no such slot";
  records.reset();
}

// A host budget without a slot, as with files only.
TEST_F(SlotRecordsTest, ComparesNeedNoSlot) {
  SlotRecords records;
  ASSERT_TRUE(records.create(machine.driver, 0));
  EXPECT_TRUE(bool(records));
  std::vector<std::uint32_t> taken;
  while (records.can_compare()) taken.push_back(records.begin_compare({1, 2}));
  EXPECT_GE(taken.size(), 256u);
  ++records.compare(taken.back())->changes;
  EXPECT_TRUE(records.end_compare(taken.back()));
  EXPECT_TRUE(records.can_compare());
  EXPECT_FALSE(records.end_compare(taken.front()));
  EXPECT_EQ(records.begin_compare({3, 4}), taken.front());
  EXPECT_EQ(records.compare(taken.front())->last.second, 4u);
  records.reset();
}

}  // namespace
}  // namespace vmem::tiers
