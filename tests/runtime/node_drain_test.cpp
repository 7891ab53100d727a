// Whether a node of a cluster may be drained.
#include "runtime/cluster/node_drain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vmem::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

ClusterNode node(std::uint64_t id, std::uint64_t lends, std::uint64_t holds) {
  ClusterNode node{.id = NodeId{id}, .record = {}};
  node.record.kind = lends == 0 ? "program" : "daemon";
  node.record.lends.memory = lends * kMiB;
  node.holds = cluster::Holdings{.memory = holds * kMiB};
  return node;
}

std::string why(const std::vector<ClusterNode>& nodes, std::uint64_t id) {
  const Status checked = check_room_for_drain(nodes, NodeId{id});
  return checked ? "" : checked.error().message;
}

TEST(NodeDrain, IsAllowedIfTheOthersHaveRoom) {
  EXPECT_EQ(why({node(1, 64, 40), node(2, 64, 24), node(3, 0, 0)}, 1), "");
}

TEST(NodeDrain, OfANodeThatIsNotThereIsRefused) {
  EXPECT_THAT(why({node(1, 64, 0)}, 7), AllOf(HasSubstr("no node 7"), HasSubstr("vmem node list")));
}

TEST(NodeDrain, OfAProgramIsRefused) {
  EXPECT_THAT(why({node(1, 64, 0), node(2, 0, 0)}, 2), HasSubstr("node 2 is a program and lends nothing"));
}

TEST(NodeDrain, OfTheLastNodeWithRoomIsRefusedWithFigures) {
  EXPECT_THAT(why({node(1, 64, 24), node(2, 0, 0)}, 1),
              AllOf(HasSubstr("the last one that lends"), HasSubstr("24 MiB"), HasSubstr("--force")));
  EXPECT_THAT(why({node(1, 64, 40), node(2, 64, 44)}, 1),
              AllOf(HasSubstr("holds 40 MiB"), HasSubstr("room for 20 MiB"), HasSubstr("--force")));
}

TEST(NodeDrain, RoomOnNodesThatDrainDoesNotCount) {
  std::vector<ClusterNode> nodes{node(1, 64, 40), node(2, 64, 0), node(3, 64, 40)};
  EXPECT_EQ(why(nodes, 1), "");
  nodes[1].drain = cluster::DrainOrder{};
  EXPECT_THAT(why(nodes, 1), HasSubstr("room for 24 MiB"));
}

TEST(NodeDrain, CopiesOfRegionsNeedRoomOfTheirKind) {
  std::vector<ClusterNode> nodes{node(1, 64, 0), node(2, 64, 0)};
  nodes[0].record.lends.copies = 32 * kMiB;
  nodes[0].holds->copies = 16 * kMiB;
  EXPECT_THAT(why(nodes, 1), AllOf(HasSubstr("16 MiB of copies"), HasSubstr("room for 0 B")));
  nodes[1].record.lends.copies = 16 * kMiB;
  EXPECT_EQ(why(nodes, 1), "");
}

}  // namespace
}  // namespace vmem::runtime
