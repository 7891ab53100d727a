#include "rdma/lending/remote_tier/copy_placer.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

// In pages.
struct Node {
  std::uint64_t memory = 0, disk = 0, hbm = 0;
};

wire::MediumBytes bytes_of(const Node& node) {
  return {.memory = node.memory * kPage, .disk = node.disk * kPage, .hbm = node.hbm * kPage};
}

class Nodes {
 public:
  Nodes(std::uint32_t replicas, const std::vector<Node>& nodes,
        CopyPlacer::LastResort last = CopyPlacer::LastResort::none)
      : placer(std::vector<std::string>(nodes.size(), "node"), replicas, last) {
    for (std::uint32_t i = 0; i < nodes.size(); ++i) placer.set_room(i, {.lease = i + 1, .bytes = bytes_of(nodes[i])});
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
  some.placer.revise(1, {});
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

TEST(CopyPlacer, ADrainingNodeGetsNoPagesAndCountsWithWhatItHas) {
  Nodes some(1, {{8}, {2}});
  ASSERT_TRUE(some.allocate());
  ASSERT_EQ(some.placer.copies(some.slots[0])[0].node, 0u);
  some.placer.set_draining(0, true);
  EXPECT_EQ(some.budget(), 3u);
  EXPECT_EQ(some.placer.places(), (std::vector<std::uint64_t>{kPage, 2 * kPage}));
  EXPECT_EQ(some.allocate_all(), 3u);
  EXPECT_EQ(some.placer.copies(some.slots[2])[0].node, 1u);
  some.placer.set_draining(0, false);
  EXPECT_EQ(some.allocate_all(), 10u);
}

TEST(CopyPlacer, APageThatFitsNowhereElseGoesToADrainingNodeUnlessATierIsBelow) {
  Nodes some(2, {{8}, {2}, {2}}, CopyPlacer::LastResort::draining_nodes);
  some.placer.set_draining(0, true);
  for (int page = 0; page < 2; ++page) {
    ASSERT_TRUE(some.allocate());
    for (const CopyPlace& copy : some.placer.copies(some.slots.back())) EXPECT_NE(copy.node, 0u);
  }
  EXPECT_EQ(some.budget(), 2u);
  EXPECT_FALSE(some.allocate()) << "one node is no place for two copies";
  some.placer.release(some.slots.back());
  some.slots.pop_back();
  some.placer.set_draining(1, true);
  ASSERT_TRUE(some.allocate()) << "a single copy on the node that stays";
  EXPECT_EQ(some.placer.copies(some.slots.back())[0].node, 2u);
  some.placer.set_draining(2, true);
  ASSERT_TRUE(some.allocate());
}

TEST(CopyPlacer, TheSecondCopyGoesToAnotherRackElseToAnotherHost) {
  CopyPlacer placer({}, 2);
  const std::vector<FailureDomain> domains{{"a", "1"}, {"a", "1"}, {"a", "2"}, {"b", "3"}};
  for (std::uint32_t node = 0; node < domains.size(); ++node) {
    placer.add_node("node", domains[node]);
    placer.set_room(node, {.lease = node + 1, .bytes = {.memory = 8 * kPage}});
  }
  const auto other_node = [&] {
    const tiers::SlotId slot = placer.allocate(kPage)->slot;
    const auto from = placer.copies(slot);
    return std::pair(from[0].node, from[1].node);
  };
  for (int i = 0; i < 4; ++i) {
    const auto [first, second] = other_node();
    EXPECT_NE(domains[first].rack, domains[second].rack);
  }
  placer.drop(3);
  for (int i = 0; i < 4; ++i) {
    const auto [first, second] = other_node();
    EXPECT_NE(domains[first].host, domains[second].host);
  }
}

// ---- repairs ----

struct Planned {
  Repair::Kind kind;
  std::size_t copy;
  bool operator==(const Planned&) const = default;
};
Planned planned(const Nodes& some, const ValidCopies& valid) {
  const Repair repair = some.placer.repair(some.placer.granted(some.slots[0]), valid);
  return {repair.kind, repair.copy};
}
constexpr Planned kNothing{Repair::Kind::none, 0};
constexpr auto kMake = Repair::Kind::make, kDrop = Repair::Kind::drop;

TEST(CopyPlacer, ALostCopyIsMadeAgainIfThereIsAnotherNode) {
  Nodes some(2, {{8}, {8}, {8}});
  ASSERT_TRUE(some.allocate());
  EXPECT_EQ(planned(some, {true, true}), kNothing);
  some.placer.drop(some.placer.copies(some.slots[0])[1].node);
  EXPECT_EQ(planned(some, {true, true}), (Planned{kMake, 1}));
  EXPECT_EQ(planned(some, {false, false}), kNothing) << "there is nothing to copy from";
  const auto to = some.placer.reserve(some.placer.granted(some.slots[0]), 1);
  ASSERT_TRUE(to);
  EXPECT_NE(to->node, some.placer.copies(some.slots[0])[0].node);
  some.placer.replace(some.placer.granted(some.slots[0]), 1, *to);
  EXPECT_EQ(planned(some, {true, true}), kNothing);
}

TEST(CopyPlacer, WithOneNodeLeftNoCopyIsMadeAgain) {
  Nodes some(2, {{8}, {8}});
  ASSERT_TRUE(some.allocate());
  some.placer.drop(1);
  const bool first_is_there = some.placer.copies(some.slots[0])[0].node == 0;
  EXPECT_EQ(planned(some, {first_is_there, !first_is_there}), kNothing);
}

TEST(CopyPlacer, ACopyLeavesADrainingNode) {
  Nodes some(1, {{8}, {2}});
  ASSERT_TRUE(some.allocate());
  some.placer.set_draining(0, true);
  EXPECT_EQ(planned(some, {true}), (Planned{kMake, 0}));
  const auto to = some.placer.reserve(some.placer.granted(some.slots[0]), 0);
  ASSERT_TRUE(to);
  EXPECT_FALSE(some.placer.room(0).empty) << "the old copy stays until the new one is there";
  EXPECT_EQ(some.placer.replace(some.placer.granted(some.slots[0]), 0, *to)->node, 0u);
  EXPECT_TRUE(some.placer.room(0).empty);
  EXPECT_EQ(planned(some, {true}), kNothing);
}

TEST(CopyPlacer, ACopyLeavesADrainingNodeWithoutAnotherOneIfTheOtherIsEnough) {
  Nodes some(2, {{8}, {8}});
  ASSERT_TRUE(some.allocate());
  const auto copies = some.placer.copies(some.slots[0]);
  some.placer.set_draining(copies[0].node, true);
  EXPECT_EQ(planned(some, {true, true}), (Planned{kDrop, 0}));
  EXPECT_EQ(planned(some, {true, false}), (Planned{kMake, 1}));
  EXPECT_EQ(planned(some, {false, true}), (Planned{kDrop, 0})) << "its room is in use";
  some.placer.set_away(copies[1].node);
  EXPECT_EQ(planned(some, {true, true}).kind, kMake) << "a node that is away may be gone for good";
}

TEST(CopyPlacer, OfTwoCopiesTheLostOneComesBeforeTheOneThatLeaves) {
  Nodes some(2, {{8}, {8}, {8}, {8}});
  ASSERT_TRUE(some.allocate());
  const auto copies = some.placer.copies(some.slots[0]);
  some.placer.set_draining(copies[0].node, true);
  some.placer.drop(copies[1].node);
  EXPECT_EQ(planned(some, {true, false}), (Planned{kMake, 1}));
}

TEST(CopyPlacer, ARepairOfASlotThatWasReleasedChangesNothing) {
  Nodes some(1, {{8}, {2}});
  ASSERT_TRUE(some.allocate());
  const GrantedSlot before = some.placer.granted(some.slots[0]);
  some.placer.set_draining(0, true);
  const auto to = some.placer.reserve(before, 0);
  ASSERT_TRUE(to);
  some.placer.release(before.slot);
  EXPECT_EQ(some.placer.repair(before, {true}).kind, Repair::Kind::none);
  EXPECT_FALSE(some.placer.reserve(before, 0));
  EXPECT_FALSE(some.placer.replace(before, 0, *to));
  some.slots.clear();
  ASSERT_TRUE(some.allocate());
  ASSERT_EQ(some.slots[0], before.slot) << "the slot is another page's now";
  const auto copies = some.placer.copies(before.slot);
  EXPECT_FALSE(some.placer.replace(before, 0, *to));
  EXPECT_EQ(some.placer.copies(before.slot), copies);
}

TEST(CopyPlacer, AReservedPlaceIsNobodyElses) {
  Nodes some(1, {{1}, {1}});
  ASSERT_TRUE(some.allocate());
  const std::uint32_t node = some.placer.copies(some.slots[0])[0].node;
  some.placer.set_draining(node, true);
  const auto to = some.placer.reserve(some.placer.granted(some.slots[0]), 0);
  ASSERT_TRUE(to);
  EXPECT_FALSE(some.allocate());
  EXPECT_FALSE(some.placer.reserve(some.placer.granted(some.slots[0]), 0));
  some.placer.cancel(some.placer.granted(some.slots[0]), *to, kPage);
  EXPECT_TRUE(some.placer.reserve(some.placer.granted(some.slots[0]), 0));
}

// ---- HBM ----

TEST(CopyPlacer, HbmIsRoomLikeMemoryAndDisksComeLast) {
  Nodes some(1, {{.memory = 2, .disk = 4, .hbm = 2}});
  EXPECT_EQ(some.budget(), 8u);
  ASSERT_EQ(some.allocate_all(), 8u);
  std::map<wire::Medium, int> pages;
  for (std::size_t i = 0; i < 4; ++i) ++pages[*wire::medium_of(some.placer.copies(some.slots[i])[0].offset)];
  EXPECT_EQ(pages[wire::Medium::memory], 2);
  EXPECT_EQ(pages[wire::Medium::hbm], 2);
}

TEST(CopyPlacer, OfTwoNodesTheOneWithHbmGoesBeforeTheOneWithALargerDisk) {
  Nodes some(1, {{.disk = 16}, {.hbm = 4}});
  ASSERT_TRUE(some.allocate());
  EXPECT_EQ(some.placer.copies(some.slots[0])[0].node, 1u);
}

TEST(CopyPlacer, TheFasterMediumOfANodeGoesFirstInEitherOrder) {
  for (const auto& [memory, hbm] : {std::pair(0u, 1u), std::pair(1u, 0u)}) {
    Nodes some(1, {{.memory = 2, .disk = 2, .hbm = 2}});
    some.placer.set_level(0, wire::Medium::memory, memory);
    some.placer.set_level(0, wire::Medium::hbm, hbm);
    some.placer.set_level(0, wire::Medium::disk, 2);
    ASSERT_EQ(some.allocate_all(), 6u);
    const auto medium = [&](std::size_t i) { return *wire::medium_of(some.placer.copies(some.slots[i])[0].offset); };
    EXPECT_EQ(medium(0), memory == 0 ? wire::Medium::memory : wire::Medium::hbm);
    EXPECT_EQ(medium(2), memory == 0 ? wire::Medium::hbm : wire::Medium::memory);
    EXPECT_EQ(medium(4), wire::Medium::disk);
  }
}

TEST(CopyPlacer, OfTwoNodesTheFasterGoesBeforeTheOneWithMoreRoom) {
  Nodes some(1, {{.memory = 16}, {.hbm = 4}, {.disk = 4}});
  some.placer.set_level(0, wire::Medium::memory, 2);
  some.placer.set_level(1, wire::Medium::hbm, 1);
  some.placer.set_level(2, wire::Medium::disk, 0);
  ASSERT_EQ(some.allocate_all(), 24u);
  const auto node = [&](std::size_t i) { return some.placer.copies(some.slots[i])[0].node; };
  EXPECT_EQ(node(0), 2u);
  EXPECT_EQ(node(3), 2u);
  EXPECT_EQ(node(4), 1u);
  EXPECT_EQ(node(8), 0u);
  some.placer.set_room(1, {.lease = 9, .bytes = {.hbm = 4 * kPage}});
  ASSERT_TRUE(some.allocate());
  EXPECT_EQ(node(24), 1u) << "the level is the node's, not the lease's";
}

// Whoever needs more says so before it reads the budget, so that it is known here.
TEST(CopyPlacer, RoomThatSomebodyHasComeToNeedIsNotGivenUp) {
  Nodes some(1, {{.memory = 4}});
  const auto kept = some.placer.give_up(0, {.memory = kPage}, [] { return false; });
  EXPECT_TRUE(kept.memory.empty());
  EXPECT_EQ(kept.left.memory, 4 * kPage);
  EXPECT_EQ(some.placer.usage().budget_bytes, 4 * kPage);
  const auto given = some.placer.give_up(0, {.memory = kPage}, [] { return true; });
  EXPECT_EQ(given.left.memory, kPage);
  EXPECT_EQ(some.placer.usage().budget_bytes, kPage);
}

// Only until what is left fits, and to the memory of the same node, too.
TEST(CopyPlacer, PagesLeaveHbmThatIsWantedBack) {
  Nodes some(1, {{.memory = 1, .hbm = 4}});
  ASSERT_EQ(some.allocate_all(), 5u);
  some.placer.release(some.slots[0]);  // the page in memory
  const auto before = some.placer.revision();
  EXPECT_EQ(some.placer.revise(0, {.memory = kPage, .hbm = 3 * kPage}).hbm, 4 * kPage);
  EXPECT_GT(some.placer.revision(), before);
  EXPECT_EQ(some.ready(), 1u) << "in memory";
  const GrantedSlot slot = some.placer.granted(some.slots[1]);
  EXPECT_TRUE(some.placer.is_wanted_back(some.placer.copies(slot.slot)[0]));
  ASSERT_EQ(some.placer.repair(slot, {true}).kind, Repair::Kind::make);
  const auto to = some.placer.reserve(slot, 0);
  ASSERT_TRUE(to);
  EXPECT_EQ(*wire::medium_of(to->offset), wire::Medium::memory);
  ASSERT_TRUE(some.placer.replace(slot, 0, *to));
  for (std::size_t i = 1; i < 5; ++i) {
    const GrantedSlot each = some.placer.granted(some.slots[i]);
    EXPECT_EQ(some.placer.repair(each, {true}).kind, Repair::Kind::none) << i;
  }
  some.placer.revise(0, {.memory = kPage, .hbm = 4 * kPage});
  EXPECT_EQ(some.ready(), 1u) << "in HBM again";
}

// Those that are on their way count as gone, until their move fails.
TEST(CopyPlacer, NoMorePagesBeginToLeaveHbmThanHaveTo) {
  Nodes some(1, {{.memory = 4, .hbm = 4}});
  ASSERT_EQ(some.allocate_all(), 8u);
  for (std::size_t i = 0; i < 4; ++i) some.placer.release(some.slots[i]);
  some.placer.revise(0, {.memory = 4 * kPage, .hbm = 2 * kPage});
  const auto slot = [&](std::size_t i) { return some.placer.granted(some.slots[i]); };
  const auto leaves = [&](std::size_t i) { return some.placer.repair(slot(i), {true}).kind == Repair::Kind::make; };
  const auto first = some.placer.reserve(slot(4), 0), second = some.placer.reserve(slot(5), 0);
  ASSERT_TRUE(first && second);
  EXPECT_FALSE(leaves(6));
  some.placer.cancel(slot(4), *first, kPage);
  EXPECT_TRUE(leaves(6));
  ASSERT_TRUE(some.placer.reserve(slot(6), 0));
  EXPECT_FALSE(leaves(7));
  some.placer.release(some.slots[6]);  // its move is dropped: the room is free all the same
  EXPECT_FALSE(leaves(7));
  ASSERT_TRUE(some.placer.replace(slot(5), 0, *second));
  EXPECT_FALSE(leaves(7));
  EXPECT_FALSE(leaves(4));
}

// Its owner had some back when the lease was granted.
TEST(CopyPlacer, HbmBeyondWhatWasThereAtFirstIsUsedOnceItIsLent) {
  Nodes some(1, {{.hbm = 1}});
  ASSERT_EQ(some.allocate_all(), 1u);
  some.placer.revise(0, {.hbm = 3 * kPage});
  EXPECT_EQ(some.budget(), 3u);
  EXPECT_EQ(some.allocate_all(), 3u);
  some.placer.revise(0, {.hbm = 2 * kPage});
  EXPECT_TRUE(some.placer.is_wanted_back(some.placer.copies(some.slots[2])[0]));
}

TEST(CopyPlacer, PagesStayOnADiskThatFailed) {
  Nodes some(1, {{.memory = 4, .disk = 4}});
  ASSERT_EQ(some.allocate_all(), 8u);
  for (std::size_t i = 0; i < 4; ++i) some.placer.release(some.slots[i]);
  some.placer.revise(0, {.memory = 4 * kPage, .disk = kPage});
  for (std::size_t i = 4; i < 8; ++i)
    EXPECT_EQ(some.placer.repair(some.placer.granted(some.slots[i]), {true}).kind, Repair::Kind::none);
}

}  // namespace
}  // namespace vmem::rdma
