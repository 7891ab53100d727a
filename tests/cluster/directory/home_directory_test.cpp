// What a home answers, and whom it refuses, message by message.
#include "cluster/directory/home_fixture.hpp"
#include "cluster/directory/publish_desk.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::ElementsAre;

TEST_F(HomeDirectoryTest, AWantIsAnsweredByRuns) {
  begin(2);
  tell(NodeId{2}, Want{{.first = 2, .count = 4}});
  ASSERT_TRUE(said<Sources>());
  EXPECT_THAT(
      said<Sources>()->runs,
      ElementsAre(SourceRun{.pages = {.first = 2, .count = 2}, .state = PageState::published, .nodes = {NodeId{1}}},
                  SourceRun{.pages = {.first = 4, .count = 2}, .state = PageState::free, .nodes = {}}));
  tell(NodeId{2}, Want{{.first = 6, .count = 3}});
  EXPECT_TRUE(out.messages.empty()) << "beyond the region";
  tell(NodeId{3}, Want{{.first = 2, .count = 1}});
  EXPECT_TRUE(said<Closed>()) << "no participant: it may believe that it is one";
}

TEST_F(HomeDirectoryTest, AnOlderTermIsAnsweredWithTheNewerOneAndChangesNothing) {
  begin(2);
  tell(NodeId{2}, Landed{{{.first = 0, .count = 1}}}, Term{1});
  ASSERT_TRUE(said<Stale>());
  EXPECT_EQ(said<Stale>()->home, NodeId{1});
  EXPECT_EQ(out.messages.front().message.term, Term{2});
  EXPECT_EQ(home->pages()[0].cachers, 0u);
  tell(NodeId{2}, Want{{.first = 0, .count = 1}}, Term{3});
  EXPECT_TRUE(out.messages.empty());
  home->step(clock.now_us(), out);
  ASSERT_FALSE(registry.posted.empty());
  EXPECT_TRUE(std::holds_alternative<ReadPrefix>(registry.posted.front())) << "a newer one makes it read the record";
}

TEST_F(HomeDirectoryTest, AFencedHomeSaysNothing) {
  begin(2);
  fenced = true;
  tell(NodeId{2}, Want{{.first = 2, .count = 1}});
  tell(NodeId{2}, Want{{.first = 2, .count = 1}}, Term{1});
  EXPECT_FALSE(home->step(clock.now_us(), out));
  EXPECT_TRUE(out.messages.empty());
}

TEST_F(HomeDirectoryTest, AHomeByTakeoverWaitsForEveryReport) {
  make(2);
  home->step(clock.now_us(), out);
  EXPECT_EQ(out.messages.size(), 2u) << "asks both";
  const Report kept{.from = 0, .to = 8, .runs = {{.pages = {.first = 0, .count = 4}, .have = Have::kept}}};
  tell(NodeId{2}, kept);
  tell(NodeId{2}, Want{{.first = 0, .count = 1}});
  EXPECT_TRUE(out.messages.empty());
  tell(NodeId{1}, Report{.from = 0, .to = 8, .runs = {{.pages = {.first = 4, .count = 4}, .have = Have::free}}});
  EXPECT_FALSE(home->rebuilding());
  tell(NodeId{1}, Want{{.first = 0, .count = 8}});
  ASSERT_TRUE(said<Sources>());
  EXPECT_EQ(said<Sources>()->runs.front().nodes, std::vector{NodeId{2}});
}

TEST_F(HomeDirectoryTest, ReportsCountInTheirOrderAndOnce) {
  make(1);
  tell(NodeId{1}, Report{.from = 4, .to = 8, .runs = {{.pages = {.first = 4, .count = 4}, .have = Have::kept}}});
  EXPECT_TRUE(home->rebuilding());
  EXPECT_EQ(home->pages()[4].keepers, 0u) << "the first part is missing";
  tell(NodeId{1}, Report{.from = 0, .to = 4, .runs = {}});
  tell(NodeId{1}, Report{.from = 0, .to = 4, .runs = {{.pages = {.first = 0, .count = 4}, .have = Have::kept}}});
  EXPECT_EQ(home->pages()[0].keepers, 0u) << "it has said none";
  tell(NodeId{1}, Report{.from = 4, .to = 9, .runs = {}});
  EXPECT_TRUE(home->rebuilding()) << "beyond the region";
  tell(NodeId{1}, Report{.from = 4, .to = 8, .runs = {}});
  EXPECT_FALSE(home->rebuilding());
}

TEST_F(HomeDirectoryTest, OpenersAreInTheRecordBeforeTheyAreTold) {
  begin(2);
  tell(NodeId{3}, Open{});
  EXPECT_TRUE(out.messages.empty());
  home->step(clock.now_us(), out);
  EXPECT_TRUE(out.messages.empty()) << "the commit is in flight";
  ASSERT_EQ(registry.posted.size(), 1u);
  const auto& commit = std::get<Commit>(registry.posted.front());
  EXPECT_EQ(commit.conditions.front().modified, Revision{10});
  EXPECT_TRUE(commit.edits.front().value->find("3:5:program") != std::string::npos);
}

TEST_F(HomeDirectoryTest, StrangersAndA65thOpenerAreRefused) {
  begin(2);
  tell(NodeId{3}, Open{}, Term{2}, "other");
  EXPECT_EQ(said<RefusedBy>().value().why, Refusal::tenant);
  tell(NodeId{3}, Remove{}, Term{2}, "other");
  EXPECT_EQ(said<RefusedBy>().value().why, Refusal::tenant);
  begin(kMostParticipants);
  tell(NodeId{99}, Open{});
  EXPECT_EQ(said<RefusedBy>().value().why, Refusal::full);
  tell(NodeId{2}, Open{});
  EXPECT_EQ(said<Opened>().value().place, 1u) << "one that has its place";
}

// Otherwise a node that reopened could not be admitted, and would not report: a deadlock.
TEST_F(HomeDirectoryTest, ReadersOfOtherTenantsAreAdmittedAndMayNotRemove) {
  RegionRecord record = region_of(1);
  record.readers = {"a", "b"};
  make(record).begin({{.first = 0, .count = 4}});
  tell(NodeId{3}, Open{}, Term{2}, "c");
  EXPECT_EQ(said<RefusedBy>().value().why, Refusal::tenant);
  tell(NodeId{3}, Open{}, Term{2}, "b");
  EXPECT_FALSE(said<RefusedBy>());
  settle();
  EXPECT_FALSE(registry.posted.empty()) << "it comes into the record";
  tell(NodeId{3}, Remove{}, Term{2}, "b");
  EXPECT_EQ(said<RefusedBy>().value().why, Refusal::tenant);
}

TEST_F(HomeDirectoryTest, ANodeThatOpensAnewIsNotAwaited) {
  make(2);
  tell(NodeId{1}, Report{.from = 0, .to = 8, .runs = {{.pages = {.first = 0, .count = 4}, .have = Have::kept}}});
  const auto open_with = [&](Session session) {
    home->handle({.node = NodeId{2}, .tenant = "t"},
                 {.serial = Serial{7}, .term = Term{2}, .session = session, .body = Open{}}, clock.now_us(), out);
  };
  open_with(Session{4});
  EXPECT_TRUE(home->rebuilding()) << "an old message";
  open_with(Session{6});
  EXPECT_FALSE(home->rebuilding());
}

TEST(ChooseDaemon, PrefersAnotherRackThenAnotherHostThenRoom) {
  NodesView view;
  const auto daemon = [&](std::uint64_t id, const char* rack, const char* host, std::uint64_t free_bytes) {
    view.nodes.push_back({.id = NodeId{id}, .daemon = true, .rack = rack, .host = host, .free_bytes = free_bytes});
  };
  daemon(1, "a", "a1", 900);
  daemon(2, "a", "a1", 900);
  daemon(3, "a", "a2", 100);
  daemon(4, "b", "b1", 10);
  daemon(5, "b", "b1", 20);
  const HomeTable table;
  const auto choose = [&](std::vector<NodeId> excluded) {
    const KnownNode* const node =
        choose_daemon(view, table, {.page_bytes = 10, .keepers = {NodeId{1}}, .excluded = std::move(excluded)});
    return node == nullptr ? 0 : static_cast<std::uint64_t>(node->id);
  };
  EXPECT_EQ(choose({}), 5u);
  EXPECT_EQ(choose({NodeId{5}}), 4u);
  view.nodes[3].draining = view.nodes[4].draining = true;
  EXPECT_EQ(choose({}), 3u);
  EXPECT_EQ(choose({NodeId{3}}), 2u);
  EXPECT_EQ(choose({NodeId{2}, NodeId{3}}), 0u);
  view.nodes[2].free_bytes = view.nodes[1].free_bytes = 9;
  EXPECT_EQ(choose({}), 0u) << "no room";
}

TEST_F(HomeDirectoryTest, WhoLeavesIsKeptForADaemonThatCouldTakeOver) {
  view.nodes[2].daemon = true;
  begin(2);
  tell(NodeId{1}, Leaving{.left_us = 1'000'000});
  EXPECT_FALSE(said<LeaveDone>());
}

TEST_F(HomeDirectoryTest, WhoLeavesMayGoAtOnceWhereNoDaemonCouldTakeOver) {
  view.nodes[2].daemon = view.nodes[2].draining = true;
  begin(2);
  tell(NodeId{1}, Leaving{.left_us = 1'000'000});
  ASSERT_TRUE(said<LeaveDone>());
  EXPECT_THAT(said<LeaveDone>()->lost, ElementsAre(directory::Run{.first = 0, .count = 4}));
}

TEST_F(HomeDirectoryTest, WhoLeavesWaitsForNoDaemonThatLeavesItself) {
  view.nodes[1].daemon = true;
  begin(2);
  tell(NodeId{2}, Leaving{.left_us = 1'000'000});
  tell(NodeId{1}, Leaving{.left_us = 1'000'000});
  EXPECT_TRUE(said<LeaveDone>());
}

// Its commit would fail each time, as if the registry were slow.
TEST_F(HomeDirectoryTest, ANameWhoseRecordCannotBeReadIsNamedByWhoPublishesIt) {
  RegionPoll poll(calls, config, index);
  PublishDesk desk(calls, context, poll);
  Read read;
  read.records.push_back({.key = name_key("table"), .value = "{", .modified = Revision{5}, .lease = {}});
  ASSERT_TRUE(index.take_names(read, Revision{6}));
  desk.publish({.ticket = Ticket{3}, .region = region_of(1), .written = {}, .asked_us = 0, .deadline_us = 1'000'000});
  ASSERT_TRUE(desk.step(0, out));
  ASSERT_EQ(out.events.size(), 1u);
  const auto& ended = std::get<PublishEnded>(out.events.front());
  ASSERT_FALSE(ended.serial);
  EXPECT_EQ(ended.serial.error().status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(ended.serial.error().message, ::testing::HasSubstr("names/table"));
  ASSERT_TRUE(index.take_names({}, Revision{7}));
  EXPECT_FALSE(index.is_unreadable("table"));
}

}  // namespace
}  // namespace vmem::cluster::directory
