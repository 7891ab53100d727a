#include "rdma/lending/remote_tier/copy_placer.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

// In pages.
struct Node {
  std::uint64_t memory = 0, disk = 0;
};

class Nodes {
 public:
  Nodes(std::uint32_t replicas, const std::vector<Node>& nodes)
      : placer(std::vector<std::string>(nodes.size(), "node"), replicas) {
    for (std::uint32_t i = 0; i < nodes.size(); ++i)
      placer.set_room(i,
                      {.lease = i + 1, .memory_bytes = nodes[i].memory * kPage, .disk_bytes = nodes[i].disk * kPage});
  }
  std::uint64_t budget() const { return placer.usage().budget_bytes / kPage; }
  std::uint64_t ready() const { return placer.usage().ready_bytes / kPage; }
  bool allocate() {
    const auto granted = placer.allocate(kPage);
    if (!granted || granted->grant != tiers::Grant::granted) return false;
    slots.push_back(granted->slot);
    return true;
  }
  std::uint64_t allocate_all() {
    while (allocate()) {
    }
    return slots.size();
  }
  CopyPlacer placer;
  std::vector<tiers::SlotId> slots;
};

// Malloc commits to the budget, so each page of it has to find its two places.
TEST(CopyPlacer, AsManyPagesAsTheBudgetSaysFindTwoPlaces) {
  for (const auto& nodes : std::vector<std::vector<Node>>{{{8}, {8}},
                                                          {{8}, {4}},
                                                          {{4}, {4}, {4}},
                                                          {{8}, {2}, {3}},
                                                          {{4}, {4}, {.disk = 8}},
                                                          {{2, 6}, {8}, {.disk = 16}},
                                                          {{3}, {3}, {.disk = 3}}}) {
    Nodes some(2, nodes);
    EXPECT_GE(some.ready(), some.budget());
    EXPECT_GE(some.allocate_all(), some.budget()) << nodes.size() << " nodes, the first lends " << nodes[0].memory;
  }
}

TEST(CopyPlacer, PagesThatComeAndGoDoNotUseUpTheRoomOfOthers) {
  std::mt19937 random(7);
  for (int round = 0; round < 100; ++round) {
    std::vector<Node> nodes(2 + random() % 3);
    for (Node& node : nodes) node = {random() % 6, random() % 6};
    Nodes some(2, nodes);
    for (int step = 0; step < 60; ++step) {
      if (some.slots.size() < some.budget() && random() % 3 != 0) {
        ASSERT_TRUE(some.allocate()) << "round " << round << ", page " << some.slots.size() << " of " << some.budget();
      } else if (!some.slots.empty()) {
        std::swap(some.slots[random() % some.slots.size()], some.slots.back());
        some.placer.release(some.slots.back());
        some.slots.pop_back();
      }
    }
  }
}

TEST(CopyPlacer, PagesPreferMemoryWhereTheBudgetAllowsIt) {
  Nodes some(2, {{8}, {8}, {.disk = 4}});
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(some.allocate());
    for (const CopyPlace& copy : some.placer.copies(some.slots.back())) EXPECT_NE(copy.node, 2u);
  }
}

TEST(CopyPlacer, OneOfTwoNodesThatIsFullLeavesNoRoom) {
  Nodes some(2, {{8}, {4}});
  EXPECT_EQ(some.allocate_all(), 4u);
  EXPECT_EQ(some.ready(), 0u) << "what the larger node has left is no room for two copies";
}

TEST(CopyPlacer, ANodeWhoseDiskDiedDoesNotCountAsTheSecondNode) {
  Nodes some(2, {{8}, {.disk = 4}});
  ASSERT_TRUE(some.placer.shrink_disk(1, 0));
  EXPECT_EQ(some.budget(), 8u);
  EXPECT_EQ(some.ready(), 8u);
  EXPECT_EQ(some.allocate_all(), 8u);
  EXPECT_FALSE(some.placer.degraded(some.slots[0]));
}

TEST(CopyPlacer, WithOneNodeLeftPagesHaveOneCopy) {
  Nodes some(2, {{8}, {4}});
  some.placer.drop(1);
  EXPECT_EQ(some.budget(), 8u);
  EXPECT_EQ(some.ready(), 8u);
  EXPECT_EQ(some.allocate_all(), 8u);
}

TEST(CopyPlacer, WhileANodeIsAwayTheOtherTakesPagesAlone) {
  Nodes some(2, {{8}, {4}});
  some.placer.set_away(1);
  EXPECT_EQ(some.budget(), 4u);
  EXPECT_EQ(some.ready(), 8u);
  EXPECT_TRUE(some.allocate());
}

TEST(CopyPlacer, WithOneCopyPagesFillMemoryFirst) {
  Nodes some(1, {{2}, {.disk = 8}});
  ASSERT_TRUE(some.allocate());
  ASSERT_TRUE(some.allocate());
  for (const tiers::SlotId slot : some.slots) EXPECT_EQ(some.placer.copies(slot)[0].node, 0u);
  EXPECT_EQ(some.allocate_all(), 10u);
}

}  // namespace
}  // namespace vmem::rdma
