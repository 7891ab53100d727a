#include "pagetable/address_space.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>
#include <vector>

namespace vmem::pagetable {
namespace {

constexpr std::uintptr_t kBase = 0x7d0000000000;

std::unique_ptr<AddressSpace> space_of(std::uint64_t bytes) {
  auto space = AddressSpace::create(kBase, bytes);
  EXPECT_TRUE(space.has_value());
  return std::move(*space);
}

TEST(AddressSpace, EveryGranuleOfARegionLeadsToIt) {
  auto space = space_of(std::uint64_t{1} << 30);
  Region* a = *space->add(8, 0);
  Region* b = *space->add(32, 4);
  for (std::uint32_t i = 0; i < a->granules; ++i) EXPECT_EQ(space->region_at(a->first.index + i), a);
  for (std::uint32_t i = 0; i < b->granules; ++i) EXPECT_EQ(space->region_at(b->first.index + i), b);
  EXPECT_EQ(b->page_count, 2u);
  EXPECT_EQ(space->address_of(b->first.index) % b->page_bytes(), 0u);
}

TEST(AddressSpace, ARemovedRegionIsFoundNoMoreAndItsRunIsMergedWithItsNeighbours) {
  auto space = space_of(64 * kGranuleBytes);
  Region* a = *space->add(16, 0);
  Region* b = *space->add(16, 0);
  Region* c = *space->add(16, 0);
  const std::uint32_t first = b->first.index;
  space->remove(*a);
  space->remove(*c);
  space->remove(*b);
  EXPECT_EQ(space->region_at(first), nullptr);
  EXPECT_EQ(space->largest_free_bytes(), 64 * kGranuleBytes);
}

TEST(AddressSpace, PagesOfTwoRegionsNeverHaveOneKey) {
  auto space = space_of(64 * kGranuleBytes);
  std::set<PageKey> keys;
  std::set<std::uint32_t> granules;
  for (int i = 0; i < 3; ++i) {
    Region* const region = *space->add(16, 1);
    for (std::uint32_t page = 0; page < region->page_count; ++page) {
      EXPECT_TRUE(keys.insert(region->page_key(page)).second);
      EXPECT_GE(region->page_key(page).serial, kFirstOwnSerial);
    }
    granules.insert(region->first.index);
    space->remove(*region);
  }
  EXPECT_EQ(granules.size(), 1u) << "they had the same addresses, or this shows nothing";
}

TEST(AddressSpace, AFullSpaceSaysWhatIsFree) {
  auto space = space_of(16 * kGranuleBytes);
  ASSERT_TRUE(space->add(12, 0));
  auto refused = space->add(8, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_NE(refused.error().message.find("8 MiB are free"), std::string::npos) << refused.error().message;
  const auto fits = space->add(4, 0);
  ASSERT_TRUE(fits) << "a refused request takes nothing";
  EXPECT_EQ((*fits)->id, RegionId{2}) << "no id either";
}

TEST(AddressSpace, OneTiBIsReadyInUnderATenthOfASecond) {
  const auto start = std::chrono::steady_clock::now();
  auto space = space_of(std::uint64_t{1} << 40);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(100));
}

// Random adds and removes against a simple list: no two regions share a granule, and all granules
// return in the end.
TEST(AddressSpace, RandomAddsAndRemovesNeverOverlap) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    constexpr std::uint32_t kGranules = 4096;
    auto space = space_of(kGranules * kGranuleBytes);
    std::vector<Region*> live;
    std::vector<const Region*> owner(kGranules, nullptr);
    for (int step = 0; step < 2000; ++step) {
      if (live.empty() || random() % 2 == 0) {
        const std::uint32_t shift = std::array{0u, 2u, 4u}[random() % 3];
        auto added = space->add((1 + random() % 8) << shift, shift);
        if (!added) continue;
        for (std::uint32_t i = 0; i < (*added)->granules; ++i) {
          ASSERT_EQ(owner[(*added)->first.index + i], nullptr);
          owner[(*added)->first.index + i] = *added;
        }
        live.push_back(*added);
      } else {
        const std::size_t which = random() % live.size();
        Region* region = live[which];
        for (std::uint32_t i = 0; i < region->granules; ++i) owner[region->first.index + i] = nullptr;
        space->remove(*region);
        live.erase(live.begin() + std::ptrdiff_t(which));
      }
    }
    for (Region* region : live) space->remove(*region);
    EXPECT_EQ(space->largest_free_bytes(), kGranules * kGranuleBytes);
  }
}

}  // namespace
}  // namespace vmem::pagetable
