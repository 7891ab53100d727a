// Host memory that is pinned ahead of need.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

// Of 16 pages of HBM, 4 are kept for pages in transit.
constexpr std::uint32_t kUsablePages = 12;

class SlotsAhead : public MoverTest {
 protected:
  void start_with(std::optional<std::uint64_t> ahead_bytes, bool undeclared) {
    start({.hbm_pages = 16,
           .host_pages = 32,
           .undeclared = undeclared,
           .stepped = true,
           .page_bytes = std::nullopt,
           .host_ahead_bytes = ahead_bytes});
  }
  std::uint64_t pages_pinned() const { return tier->usage().held_bytes / kPageBytes; }
  std::vector<Region*> allocate_pages(std::uint32_t pages) {
    std::vector<Region*> regions;
    for (std::uint32_t i = 0; i < pages; ++i) regions.push_back(&allocate(1));
    return regions;
  }
};

TEST_F(SlotsAhead, BelowHalfOfHbmNothingIsPinned) {
  start_with(std::nullopt, true);
  allocate_pages(6);
  EXPECT_EQ(pages_pinned(), 0u);
}

TEST_F(SlotsAhead, WhatIsAllocatedBeyondHalfOfHbmIsPinned) {
  start_with(std::nullopt, true);
  allocate_pages(kUsablePages / 2 + 2);
  EXPECT_EQ(pages_pinned(), 2u);
  allocate_pages(3);
  EXPECT_EQ(pages_pinned(), 5u);
}

TEST_F(SlotsAhead, TheOverflowIsPinnedWhereItIsMore) {
  start_with(std::nullopt, true);
  allocate_pages(kUsablePages + 4);
  EXPECT_EQ(pages_pinned(), kUsablePages / 2) << "half of HBM";
  allocate_pages(4);
  EXPECT_EQ(pages_pinned(), 8u) << "what exceeds HBM";
}

TEST_F(SlotsAhead, OfDeclaredMemoryNothingIsPinnedBeforeHbmOverflows) {
  start_with(std::nullopt, false);
  allocate_pages(12);
  EXPECT_EQ(pages_pinned(), 0u);
}

TEST_F(SlotsAhead, AStatedSizeIsPinnedWithTheFirstAllocation) {
  start_with(3 * kPageBytes, false);
  allocate_pages(1);
  EXPECT_EQ(pages_pinned(), 3u);
  allocate_pages(4);
  EXPECT_EQ(pages_pinned(), 3u);
}

TEST_F(SlotsAhead, AStatedSizeIsPinnedAtTheStartWhereBlocksSharePages) {
  start({.hbm_pages = 16,
         .host_pages = 32,
         .shares_pages = true,
         .stepped = true,
         .page_bytes = std::nullopt,
         .host_ahead_bytes = 3 * kPageBytes});
  EXPECT_EQ(pages_pinned(), 3u);
}

TEST_F(SlotsAhead, NoneIsPinnedIfSoAsked) {
  start_with(0, true);
  allocate_pages(12);
  EXPECT_EQ(pages_pinned(), 0u);
}

}  // namespace
}  // namespace vmem::migration
