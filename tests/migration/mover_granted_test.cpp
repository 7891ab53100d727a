// Addresses of published regions, and of parts of the address space that come and go.
#include <gmock/gmock.h>

#include "migration/mover_published.hpp"

namespace vmem::migration {
namespace {

TEST_F(Freeze, WhatARetiredPartHoldsIsNotUsedAgain) {
  start();
  Region& region = allocate(2);
  const std::uint64_t others = space->free_bytes();
  RetireRequest lost;
  lost.first = 0;
  lost.count = std::uint32_t(space->bytes() >> pagetable::kGranuleShift);
  ASSERT_TRUE(ask(lost));
  EXPECT_EQ(space->free_bytes(), 0u);
  EXPECT_GT(others, 0u);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 1), 3);
  expect_bytes(a, region, 1, 3);
  ASSERT_TRUE(free(region));
  settle();
  EXPECT_EQ(space->free_bytes(), 0u);
  EXPECT_EQ(space->own_bytes(), 0u);
  GrantRequest grant;
  grant.first = lost.first;
  grant.count = lost.count;
  EXPECT_TRUE(ask(grant)) << "another node may have it meanwhile, and give it back";
}

TEST_F(Freeze, WhatARetiredPartHoldsIsNotUsedAgainAlsoIfItsPublicationIsTakenBack) {
  start();
  Region& region = allocate(2);
  ASSERT_TRUE(freeze(region));
  RetireRequest lost;
  lost.first = 0;
  lost.count = std::uint32_t(space->bytes() >> pagetable::kGranuleShift);
  ASSERT_TRUE(ask(lost));
  ThawRequest thaw;
  thaw.region = &region;
  thaw.first_granule = region.first.index;
  ASSERT_TRUE(ask(thaw));
  Actor& a = actor();
  write_to_the_end(a, writing(region, 1), 3);
  ASSERT_TRUE(free(region));
  settle();
  EXPECT_EQ(space->free_bytes(), 0u) << "another node may have it";
  EXPECT_EQ(space->own_bytes(), 0u);
}

TEST_F(Freeze, WhatARetiredPartHoldsIsUsedAgainOnceThePartIsGrantedAnew) {
  start();
  Region& region = allocate(2);
  RetireRequest lost;
  lost.first = 0;
  lost.count = std::uint32_t(space->bytes() >> pagetable::kGranuleShift);
  ASSERT_TRUE(ask(lost));
  GrantRequest grant;
  grant.first = lost.first;
  grant.count = lost.count;
  ASSERT_TRUE(ask(grant));
  const std::uint64_t others = space->free_bytes();
  EXPECT_EQ(space->own_bytes(), space->bytes());
  ASSERT_TRUE(free(region));
  settle();
  EXPECT_GT(space->free_bytes(), others);
  EXPECT_EQ(space->free_bytes(), space->bytes());
}

TEST_F(Freeze, ItsAddressesAreUsedAgainOnceTheyAreGranted) {
  start();
  const std::uint64_t all = space->free_bytes();
  Region& region = allocate(2);
  const std::uint32_t first = region.first.index, granules = region.granules;
  ASSERT_TRUE(freeze(region));
  ASSERT_TRUE(close(region));
  settle();
  EXPECT_LT(space->free_bytes(), all);
  GrantRequest grant;
  grant.first = first;
  grant.count = granules;
  ASSERT_TRUE(ask(grant));
  EXPECT_EQ(space->free_bytes(), all);
}

TEST_F(Freeze, AGrantThatComesBeforeTheEndOfTheRegionCounts) {
  start();
  const std::uint64_t all = space->free_bytes();
  Region& region = allocate(2);
  const std::uint32_t first = region.first.index, granules = region.granules;
  Actor& a = actor();
  ASSERT_TRUE(freeze(region));
  ASSERT_TRUE(acquire(a, reading(region, 0, 2)));
  Gate kernel = gate(a);
  release(a, reading(region, 0, 2));
  ASSERT_TRUE(close(region, &a));
  GrantRequest grant;
  grant.first = first;
  grant.count = granules;
  ASSERT_TRUE(ask(grant));
  kernel.open();
  finish_work(a);
  settle();
  EXPECT_EQ(space->free_bytes(), all);
}

}  // namespace
}  // namespace vmem::migration
