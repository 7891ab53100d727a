#include "cluster/membership.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cluster/static_peers.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;
using Kind = Change::Kind;

NodeIdentity node(std::uint64_t id, std::uint64_t incarnation = 1) { return {NodeId{id}, Incarnation{incarnation}}; }

class StaticPeersTest : public ::testing::Test {
 protected:
  std::vector<Kind> changes(Membership& membership) {
    last.clear();
    membership.poll(last);
    std::vector<Kind> kinds;
    for (const Change& change : last) kinds.push_back(change.kind);
    return kinds;
  }
  const Member& member(std::size_t i) const { return peers.view().members.at(i); }
  StaticPeers peers = *StaticPeers::create(node(1), {{{}, "a:1"}, {NodeId{3}, "b:1"}});
  std::vector<Change> last;
};

TEST_F(StaticPeersTest, ListedNodesAreExpectedUntilTheyAreHeardOf) {
  EXPECT_EQ(peers.view().epoch, Epoch{1});
  EXPECT_EQ(member(0).standing, Standing::expected);
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  EXPECT_EQ(member(0).standing, Standing::member);
  EXPECT_EQ(member(0).node, node(2)) << "its id is learned";
  EXPECT_EQ(changes(peers), std::vector{Kind::joined});
  EXPECT_EQ(last[0].address, "a:1");
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  EXPECT_TRUE(changes(peers).empty()) << "said once";
}

TEST_F(StaticPeersTest, WhoMissesDeadlinesIsSuspectAndRecoversWhenHeardOf) {
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  peers.missed(NodeId{2});
  peers.missed(NodeId{2});
  ASSERT_TRUE(peers.heard("", node(2)));
  peers.missed(NodeId{2});
  peers.missed(NodeId{2});
  EXPECT_EQ(member(0).standing, Standing::member) << "a word in between starts the count anew";
  peers.missed(NodeId{2});
  EXPECT_EQ(member(0).standing, Standing::suspect);
  peers.missed(NodeId{2});
  EXPECT_EQ(changes(peers), (std::vector{Kind::joined, Kind::suspected}));
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  EXPECT_EQ(changes(peers), std::vector{Kind::recovered});
}

TEST_F(StaticPeersTest, OnlyAnEpochEvicts) {
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  for (int i = 0; i < 1000; ++i) peers.missed(NodeId{2});
  EXPECT_EQ(peers.view().members.size(), 2u);
  EXPECT_EQ(peers.view().epoch, Epoch{1});
  changes(peers);
  ASSERT_TRUE(peers.change(Epoch{2}, {{NodeId{3}, "b:1"}}));
  EXPECT_EQ(changes(peers), std::vector{Kind::evicted});
  EXPECT_EQ(last[0].node, node(2));
  EXPECT_EQ(last[0].epoch, Epoch{2});
  EXPECT_EQ(peers.view().members.size(), 1u);
}

TEST_F(StaticPeersTest, AnEpochThatIsNotLaterIsRefused) {
  ASSERT_TRUE(peers.change(Epoch{5}, {}));
  EXPECT_THAT(peers.change(Epoch{5}, {}).error().message, HasSubstr("epoch 5 does not follow epoch 5"));
  EXPECT_FALSE(peers.change(Epoch{4}, {}));
  EXPECT_EQ(peers.view().epoch, Epoch{5});
}

TEST_F(StaticPeersTest, WhoStaysKeepsItsStanding) {
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  ASSERT_TRUE(peers.heard("b:1", node(3)));
  for (int i = 0; i < 3; ++i) peers.missed(NodeId{3});
  ASSERT_TRUE(peers.change(Epoch{2}, {{NodeId{3}, "b:2"}, {{}, "a:1"}, {{}, "c:1"}}));
  EXPECT_EQ(member(0).standing, Standing::suspect);
  EXPECT_EQ(member(0).address, "b:2") << "it moved";
  EXPECT_EQ(member(1).node, node(2));
  EXPECT_EQ(member(2).standing, Standing::expected);
}

TEST_F(StaticPeersTest, WhoMovedLeavesItsOldAddressToAnother) {
  ASSERT_TRUE(peers.heard("a:1", node(2)));
  std::uint64_t epoch = 1;
  for (const std::vector<Peer>& listed :
       {std::vector<Peer>{{NodeId{2}, "d:1"}, {{}, "a:1"}}, std::vector<Peer>{{{}, "d:1"}, {NodeId{2}, "a:1"}}}) {
    ASSERT_TRUE(peers.change(Epoch{++epoch}, listed));
    ASSERT_EQ(peers.view().members.size(), 2u);
    const std::size_t moved = listed[0].id == NodeId{} ? 1 : 0;
    EXPECT_EQ(member(moved).node, node(2));
    EXPECT_EQ(member(1 - moved).node.id, NodeId{});
    EXPECT_EQ(member(1 - moved).standing, Standing::expected);
  }
}

TEST_F(StaticPeersTest, ALaterIncarnationIsARestartAndAnEarlierOneIsOver) {
  ASSERT_TRUE(peers.heard("a:1", node(2, 5)));
  changes(peers);
  ASSERT_TRUE(peers.heard("a:1", node(2, 6)));
  EXPECT_EQ(changes(peers), std::vector{Kind::restarted});
  EXPECT_THAT(peers.heard("a:1", node(2, 5)).error().message,
              HasSubstr("incarnation 5 of node 2 is over: incarnation 6"));
  EXPECT_EQ(member(0).node, node(2, 6));
}

TEST_F(StaticPeersTest, AnAddressWithoutAnIdIsOfWhoeverProvedItselfThereLast) {
  ASSERT_TRUE(peers.heard("a:1", node(2, 5)));
  changes(peers);
  ASSERT_TRUE(peers.heard("a:1", node(4, 1))) << "a container made anew has another id";
  EXPECT_EQ(changes(peers), (std::vector{Kind::replaced, Kind::joined}));
  EXPECT_EQ(last[0].node, node(2, 5));
  EXPECT_EQ(last[1].node, node(4, 1));
  EXPECT_EQ(member(0).node, node(4, 1));
  EXPECT_FALSE(peers.heard("a:1", node(3))) << "that is another member";
  ASSERT_TRUE(peers.heard("b:1", node(3)));
  EXPECT_THAT(peers.heard("b:1", node(5)).error().message, HasSubstr("node 3 was expected there"));
}

TEST_F(StaticPeersTest, IdsBelongToOneNodeEach) {
  EXPECT_THAT(peers.heard("a:1", node(1)).error().message, HasSubstr("node 1 is this node"));
  EXPECT_THAT(peers.heard("b:1", node(2)).error().message,
              HasSubstr("at b:1 is node 2, and node 3 was expected there"));
  EXPECT_THAT(peers.heard("a:1", node(3)).error().message, HasSubstr("a:1 and b:1 both have the id 3"));
  EXPECT_FALSE(peers.heard("a:1", node(0)));
  EXPECT_EQ(member(0).standing, Standing::expected) << "a refusal changes nothing";
}

TEST_F(StaticPeersTest, OthersJoinUnlessTheListIsClosed) {
  ASSERT_TRUE(peers.heard("", node(9)));
  EXPECT_EQ(changes(peers), std::vector{Kind::joined});
  ASSERT_TRUE(peers.change(Epoch{2}, {})) << "the listed ones leave, who joined by itself stays";
  ASSERT_EQ(peers.view().members.size(), 1u);
  EXPECT_EQ(member(0).node, node(9));
  ASSERT_TRUE(peers.change(Epoch{3}, {}, {NodeId{9}}));
  EXPECT_EQ(changes(peers), std::vector{Kind::evicted});
  auto closed = StaticPeers::create(node(1), {{{}, "a:1"}}, {.others_may_join = false});
  EXPECT_THAT(closed->heard("", node(9)).error().message, HasSubstr("node 9 is not in the list of peers"));
}

TEST_F(StaticPeersTest, AListThatContradictsItselfIsRefused) {
  const auto message = [](const std::vector<Peer>& listed) {
    return StaticPeers::create(node(1), listed).error().message;
  };
  EXPECT_THAT(message({{{}, "a:1"}, {{}, "a:1"}}), HasSubstr("names a:1 twice"));
  EXPECT_THAT(message({{NodeId{2}, "a:1"}, {NodeId{2}, "b:1"}}), HasSubstr("names node 2 twice"));
  EXPECT_THAT(message({{NodeId{1}, "a:1"}}), HasSubstr("node 1, which is this node"));
}

// Invariants under random changes: epochs only grow, ids are unique, no member leaves within an
// epoch, and the changes reproduce the members.
TEST(StaticPeers, WhoFollowsTheChangesKnowsTheMembers) {
  std::mt19937_64 random(5);
  auto peers = *StaticPeers::create(node(100), {{{}, "h1:1"}, {{}, "h2:1"}, {NodeId{3}, "h3:1"}});
  std::map<NodeId, Standing> told;
  std::vector<Change> changes;
  std::uint64_t epoch = 1;
  for (int step = 0; step < 50'000; ++step) {
    const std::size_t before = peers.view().members.size();
    const NodeId id{1 + random() % 6};
    const std::string address = random() % 2 ? "" : fmt::format("h{}:1", 1 + random() % 4);
    const std::uint64_t action = random() % 20;
    if (action == 0) {
      std::vector<Peer> listed;
      std::vector<std::uint64_t> ids{1, 2, 3, 4, 5, 6};
      std::ranges::shuffle(ids, random);
      for (std::size_t host = 1; host <= 4; ++host) {
        const NodeId named{random() % 3 == 0 ? ids[host] : 0};
        if (random() % 2) listed.push_back({named, fmt::format("h{}:1", host)});
      }
      ASSERT_TRUE(peers.change(Epoch{++epoch}, listed, {NodeId{1 + random() % 6}}));
    } else if (action < 9) {
      peers.missed(id);
      ASSERT_EQ(peers.view().members.size(), before);
    } else {
      (void)peers.heard(address, {id, Incarnation{1 + random() % 3}});
      ASSERT_GE(peers.view().members.size(), before);
    }
    changes.clear();
    peers.poll(changes);
    for (const Change& change : changes) {
      ASSERT_EQ(change.kind == Kind::joined, !told.contains(change.node.id));
      if (change.kind == Kind::evicted || change.kind == Kind::replaced) {
        told.erase(change.node.id);
      } else {
        told[change.node.id] = change.kind == Kind::suspected ? Standing::suspect : Standing::member;
      }
    }
    std::map<NodeId, Standing> actual;
    std::set<NodeId> ids;
    for (const Member& member : peers.view().members) {
      ASSERT_TRUE(member.node.id == NodeId{} || ids.insert(member.node.id).second) << step;
      if (member.standing == Standing::expected) continue;
      ASSERT_TRUE(actual.emplace(member.node.id, member.standing).second);
    }
    ASSERT_EQ(told, actual) << step;
  }
}

}  // namespace
}  // namespace vmem::cluster
