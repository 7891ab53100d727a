// Whether a node of a cluster may be drained.
#include "runtime/cluster/node_drain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "cluster/registry/memory_registry.hpp"
#include "runtime/cluster/drain_watch.hpp"

namespace vmem::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

ClusterNode node(std::uint64_t id, std::uint64_t lends, std::uint64_t holds) {
  ClusterNode node{.id = NodeId{id}, .record = {}};
  node.record.kind = lends == 0 ? "program" : "daemon";
  node.record.lends.memory = lends * kMiB;
  node.holds = cluster::Holdings{.memory = holds * kMiB};
  return node;
}

std::string why(const std::vector<ClusterNode>& nodes, std::uint64_t id,
                const std::vector<ListedRegion>& regions = {}) {
  const Status checked = check_room_for_drain(nodes, regions, NodeId{id});
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

// A daemon with room for copies of 64 MiB.
ClusterNode with_copies(std::uint64_t id, std::uint64_t holds) {
  ClusterNode daemon = node(id, 64, 0);
  daemon.record.lends.copies = 64 * kMiB;
  daemon.holds->copies = holds * kMiB;
  return daemon;
}

// Published by node 9, a program, with pages of 2 MiB.
ListedRegion region(std::uint32_t copies, const std::vector<std::uint64_t>& daemons) {
  ListedRegion region{.record = {.name = "rows", .page_bytes = 2 * kMiB, .publisher = NodeId{9}, .copies = copies},
                      .members = 0,
                      .home_is_member = true};
  auto* place = region.record.participants.data();
  *place++ = {.node = NodeId{9}, .session = {}, .daemon = false};
  for (const std::uint64_t id : daemons) *place++ = {.node = NodeId{id}, .session = {}, .daemon = true};
  return region;
}

TEST(NodeDrain, EachCopyOfAPageNeedsADaemonOfItsOwn) {
  std::vector<ClusterNode> nodes{with_copies(1, 8), with_copies(2, 8)};
  EXPECT_THAT(why(nodes, 1, {region(2, {1, 2})}),
              AllOf(HasSubstr("'rows' is to have 2 copies"), HasSubstr("1 other daemon could have one"),
                    HasSubstr("start another daemon with --copies"), HasSubstr("--force")));
  EXPECT_EQ(why(nodes, 1, {region(1, {1, 2})}), "");
  EXPECT_EQ(why(nodes, 1, {region(2, {2})}), "") << "it has none of them";
  nodes[0].holds->copies = 0;
  EXPECT_THAT(why(nodes, 1, {region(2, {1, 2})}), HasSubstr("1 other daemon")) << "it may have some by now";
  nodes.push_back(with_copies(3, 63));
  EXPECT_THAT(why(nodes, 1, {region(2, {1, 2})}), HasSubstr("1 other daemon")) << "a page has no room there";
  EXPECT_EQ(why(nodes, 1, {region(2, {1, 2, 3})}), "") << "which may have its copies already";
  nodes[2].holds->copies = 62 * kMiB;
  EXPECT_EQ(why(nodes, 1, {region(2, {1, 2})}), "");
  nodes[2].drain = cluster::DrainOrder{};
  EXPECT_THAT(why(nodes, 1, {region(2, {1, 2})}), HasSubstr("1 other daemon"));
}

// Of which `mapped` are for programs of its host, who map all of that.
ClusterNode with_hbm(std::uint64_t id, std::uint64_t hbm, std::uint64_t mapped, std::uint64_t holds) {
  ClusterNode lender = node(id, 0, 0);
  lender.record.kind = "daemon";
  lender.record.lends.hbm = hbm * kMiB;
  lender.record.mapped.bytes = mapped * kMiB;
  lender.holds->hbm = holds * kMiB;
  lender.holds->hbm_mapped = mapped * kMiB;
  lender.holds->hbm_mapper = 4711;
  return lender;
}

TEST(NodeDrain, WhatIsMappedNeedsNoRoomOnOtherNodesAndIsNone) {
  EXPECT_EQ(why({with_hbm(1, 64, 48, 64), node(2, 16, 0)}, 1), "");
  EXPECT_THAT(why({with_hbm(1, 64, 48, 64), node(2, 15, 0)}, 1), HasSubstr("holds 16 MiB of pages"));
  EXPECT_THAT(why({node(1, 64, 17), with_hbm(2, 64, 48, 48)}, 1), HasSubstr("room for 16 MiB"));
  EXPECT_EQ(why({with_hbm(1, 64, 64, 64), node(2, 0, 0)}, 1), "");
}

constexpr std::uint64_t kSecondUs = 1'000'000;

std::vector<ClusterNode> draining(std::uint64_t holds, std::uint64_t room) {
  std::vector<ClusterNode> nodes{node(1, 64, holds), node(2, room, 0)};
  nodes[0].drain = cluster::DrainOrder{};
  nodes[0].holds->drains = true;
  return nodes;
}

TEST(DrainWatch, ADrainThatStandsStillIsExplainedOnce) {
  DrainWatch watch;
  const auto nodes = draining(40, 16);
  const auto look = [&](std::uint64_t second, const std::string& words) {
    return watch.saw(words, standstill(nodes, {}, nodes[0]), second * kSecondUs);
  };
  EXPECT_THAT(look(100, "holds 50 MiB"), ElementsAre("holds 50 MiB"));
  EXPECT_THAT(look(109, "holds 40 MiB"), ElementsAre("holds 40 MiB"));
  EXPECT_THAT(look(118, "holds 40 MiB"), ElementsAre());
  EXPECT_THAT(look(119, "holds 40 MiB"),
              ElementsAre(AllOf(HasSubstr("stands still for 10 s"), HasSubstr("room for 16 MiB"),
                                HasSubstr("start another daemon"))));
  EXPECT_THAT(look(130, "holds 40 MiB"), ElementsAre());
  EXPECT_THAT(look(131, "holds 30 MiB"), ElementsAre("holds 30 MiB"));
  EXPECT_THAT(look(141, "holds 30 MiB"), ElementsAre(HasSubstr("stands still"))) << "it moved meanwhile";
}

TEST(DrainWatch, ARegistryThatIsAwayEndsNoWait) {
  DrainWatch watch;
  const auto nodes = draining(40, 64);
  const Error away{VMEM_ERROR_TIMEOUT, 0, "no server answers"};
  EXPECT_THAT(watch.saw("holds 40 MiB", standstill(nodes, {}, nodes[0]), 0), ElementsAre("holds 40 MiB"));
  EXPECT_THAT(watch.saw(away), ElementsAre(AllOf(HasSubstr("goes on"), HasSubstr("no server answers"))));
  EXPECT_THAT(watch.saw(away), ElementsAre());
  EXPECT_THAT(watch.saw("holds 40 MiB", standstill(nodes, {}, nodes[0]), 60 * kSecondUs),
              ElementsAre(HasSubstr("answers")))
      << "what it did meanwhile is not known";
}

TEST(DrainWatch, ALimitThatStandsStillIsNotADrain) {
  DrainWatch watch;
  auto nodes = draining(40, 64);
  nodes[0].holds->drains = false;
  nodes[0].holds->hbm = 40 * kMiB;
  const auto look = [&](std::uint64_t second) {
    return watch.saw("takes 64 MiB still", limit_standstill(nodes[0]), second * kSecondUs);
  };
  EXPECT_THAT(look(0), ElementsAre("takes 64 MiB still"));
  EXPECT_THAT(look(10), ElementsAre(AllOf(HasSubstr("40 MiB of pages"), HasSubstr("this daemon's memory"))));
}

TEST(DrainWatch, WhoMapsWhatTheOwnerWantsBackIsNamed) {
  ClusterNode lender = with_hbm(1, 64, 48, 48);
  lender.drain = cluster::DrainOrder{};
  lender.holds->drains = true;
  EXPECT_THAT(standstill({lender}, {}, lender), HasSubstr("map 48 MiB of its GPU's memory, process 4711 most"));
  lender.drain.reset();
  lender.hbm_limit = cluster::HbmLimit{47 * kMiB};
  EXPECT_THAT(limit_standstill(lender), HasSubstr("process 4711"));
  lender.hbm_limit = cluster::HbmLimit{48 * kMiB};
  EXPECT_THAT(limit_standstill(lender), HasSubstr("holds 0 B of pages, which would fit"));
  lender.holds->hbm += 8 * kMiB;
  EXPECT_THAT(limit_standstill(lender), HasSubstr("this daemon's memory"));
}

TEST(DrainWatch, EachReasonIsNamed) {
  const auto reason = [](const std::vector<ClusterNode>& nodes) { return standstill(nodes, {}, nodes[0]); };
  EXPECT_THAT(reason(draining(40, 16)), HasSubstr("room for 16 MiB of pages"));
  EXPECT_THAT(reason(draining(40, 64)), HasSubstr("a program with pages there does not run"));
  auto nodes = draining(0, 64);
  nodes[0].holds->leased = kMiB;
  EXPECT_THAT(reason(nodes), HasSubstr("keeps its lease"));
  nodes[0].holds->copies = kMiB;
  EXPECT_THAT(reason(nodes), HasSubstr("start another daemon with --copies"));
  nodes[1].record.lends.copies = kMiB;
  EXPECT_THAT(reason(nodes), HasSubstr("a home of the published regions"));
  nodes[0].holds->drains = false;
  EXPECT_THAT(reason(nodes), HasSubstr("does not reach the registry"));
}

TEST(DrainWatch, CopiesThatNoOtherDaemonCanHaveAreNamed) {
  std::vector<ClusterNode> nodes{with_copies(1, 8), with_copies(2, 8)};
  nodes[0].drain = cluster::DrainOrder{};
  nodes[0].holds->drains = true;
  EXPECT_THAT(standstill(nodes, {region(2, {1, 2})}, nodes[0]),
              AllOf(HasSubstr("'rows' is to have 2 copies"), HasSubstr("1 other daemon"), HasSubstr("--force")));
  nodes[0].drain->force = true;
  EXPECT_THAT(standstill({nodes[0]}, {region(2, {1, 2})}, nodes[0]),
              AllOf(HasSubstr("1 copy"), HasSubstr("0 other daemons"), Not(HasSubstr("--force"))));
  ListedRegion orphan = region(2, {1, 2});
  orphan.home_is_member = false;
  EXPECT_THAT(standstill(nodes, {orphan}, nodes[0]), HasSubstr("the home of the published region 'rows' is gone"));
}

// Orders over a registry in memory, with what others do meanwhile.
class NodeOrders : public ::testing::Test {
 protected:
  // Replies at once, after what the test does before a commit.
  class Registry final : public cluster::Registry {
   public:
    Registry(NodeOrders& test, std::function<void()> on_ready)
        : test_(test), inner_(test.state), on_ready_(std::move(on_ready)) {}
    cluster::RequestId post(cluster::RegistryRequest request) override {
      if (std::holds_alternative<cluster::Commit>(request))
        if (const auto first = std::exchange(test_.before_commit, {})) first();
      const cluster::RequestId id = inner_.post(std::move(request));
      on_ready_();
      return id;
    }
    void poll(std::vector<cluster::Reply>& replies) override { inner_.poll(replies); }

   private:
    NodeOrders& test_;
    cluster::MemoryRegistry inner_;
    std::function<void()> on_ready_;
  };

  std::unique_ptr<RegistryClient> client() {
    return *RegistryClient::open(
        [this](std::function<void()> on_ready) -> Result<std::unique_ptr<cluster::Registry>> {
          return std::make_unique<Registry>(*this, std::move(on_ready));
        },
        60'000'000);
  }
  void write(const std::string& key, const std::string& value) {
    state.apply({}, cluster::Commit{.conditions = {}, .edits = {{.key = key, .value = value, .lease = {}}}});
  }
  void put(const ClusterNode& node) {
    write(cluster::node_key(node.id), cluster::json_of(node.record));
    write(cluster::holds_key(node.id), cluster::json_of(*node.holds));
  }
  Status drain(std::uint64_t id, const AwaitFigures& await = {}) {
    return drain_node(*client(), NodeId{id}, {}, RoomCheck::required, await);
  }
  std::size_t draining() {
    return std::size_t(
        std::ranges::count_if(*list_nodes(*client()), [](const auto& node) { return node.drain.has_value(); }));
  }

  ManualClock clock;
  cluster::RegistryState state{clock};
  std::function<void()> before_commit;
};

TEST_F(NodeOrders, OfTwoAtOnceEachCountsTheOther) {
  for (const std::uint64_t id : {1, 2}) put(node(id, 64, 40));
  put(node(3, 64, 24));
  Status other;
  before_commit = [&] { other = drain(2); };
  const Status refused = drain(1);
  EXPECT_TRUE(other) << other.error().message;
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("room for 0 B"));
  EXPECT_EQ(draining(), 1u);
}

TEST_F(NodeOrders, TwoAtOnceAreBothDoneWhereTheRestHasRoom) {
  for (const std::uint64_t id : {1, 2}) put(node(id, 64, 20));
  put(node(3, 64, 24));  // room for 40 MiB
  before_commit = [&] { EXPECT_TRUE(drain(2)); };
  EXPECT_TRUE(drain(1));
  EXPECT_EQ(draining(), 2u);
}

TEST_F(NodeOrders, FiguresOfAnEarlierTimeRefuseNothing) {
  put(node(1, 64, 40));
  put(node(2, 64, 40));
  EXPECT_FALSE(drain(1));
  int looks = 0;
  const Status done = drain(1, [&] {
    if (++looks == 2) write(cluster::holds_key(NodeId{1}), cluster::json_of(cluster::Holdings{}));
    return looks < 10;
  });
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_EQ(looks, 2);
}

TEST_F(NodeOrders, WhatAllNodesHaveSaidAnewRefusesAtOnce) {
  put(node(1, 64, 40));
  put(node(2, 64, 40));
  int looks = 0;
  EXPECT_FALSE(drain(1, [&] {
    for (const std::uint64_t id : {1, 2}) put(node(id, 64, 41));
    return ++looks < 10;
  }));
  EXPECT_EQ(looks, 1);
  looks = 0;
  EXPECT_FALSE(drain(1, [&] { return ++looks < 3; })) << "nobody says anything";
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(draining(), 0u);
}

TEST_F(NodeOrders, ALimitSaysWhetherItIsLessThanBefore) {
  put(with_hbm(1, 128, 0, 16));
  const auto limit = [&](std::uint64_t bytes) {
    return limit_hbm(*client(), NodeId{1}, bytes * kMiB, RoomCheck::skipped).value();
  };
  EXPECT_TRUE(limit(64));
  EXPECT_FALSE(limit(64));
  EXPECT_FALSE(limit(128));
}

}  // namespace
}  // namespace vmem::runtime
