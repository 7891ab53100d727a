// Slices of the cluster that become part of this node's address space, or do not.
#include "runtime/cluster/slice_grants.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace vmem::runtime {
namespace {

using cluster::Slice;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kGranules = 512;

// A node of a cluster, with the first granules of the parts that it allocates in.
struct Space {
  std::set<std::uint32_t> parts;
  std::set<Slice> held;
  std::function<void()> before_grant = [] {};

  void expel() {
    for (const Slice slice : std::exchange(held, {})) parts.erase(static_cast<std::uint32_t>(slice) * kGranules);
  }
  SliceGrants grants() {
    return {.granules = kGranules,
            .take = [this](std::uint32_t) -> Result<std::vector<Slice>> {
              held = {Slice(3), Slice(4)};
              return std::vector<Slice>{Slice(3), Slice(4)};
            },
            .holds = [this](Slice slice) { return held.contains(slice); },
            .grant = [this](std::uint32_t first, std::uint32_t) -> Status {
              before_grant();
              parts.insert(first);
              return {};
            },
            .retire = [this](std::uint32_t first, std::uint32_t) { parts.erase(first); }};
  }
};

TEST(SliceGrants, WhatIsTakenIsGranted) {
  Space space;
  EXPECT_TRUE(grant_slices(space.grants(), 2));
  EXPECT_THAT(space.parts, ElementsAre(3 * kGranules, 4 * kGranules));
}

TEST(SliceGrants, AnExpulsionBetweenTakingAndGrantingLeavesNothing) {
  Space space;
  space.before_grant = [&] { space.expel(); };
  const Status granted = grant_slices(space.grants(), 2);
  ASSERT_FALSE(granted);
  EXPECT_EQ(granted.error().status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(granted.error().message, HasSubstr("removed from the cluster"));
  EXPECT_THAT(space.parts, IsEmpty());
}

}  // namespace
}  // namespace vmem::runtime
