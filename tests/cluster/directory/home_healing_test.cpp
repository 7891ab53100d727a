// How a home finds keepers, makes copies and releases surplus ones when messages are lost, late or
// never answered, and what that costs in large regions.
#include "cluster/directory/home_fixture.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kOne{1}, kTwo{2}, kThree{3}, kFour{4};

Report report(std::uint32_t pages, Have have) {
  return {.from = 0, .to = pages, .runs = {{.pages = {.first = 0, .count = pages}, .have = have}}};
}
Runs runs(std::uint32_t first, std::uint32_t count) { return {{.first = first, .count = count}}; }

class HomeHealingTest : public HomeDirectoryTest {
 protected:
  // Program 1, the publisher, and daemons 2 to `participants`.
  void publish(std::uint32_t participants, std::uint32_t copies, std::uint32_t pages = 8) {
    RegionRecord record = region_of(participants);
    record.pages = pages;
    record.copies = copies;
    view.nodes = {{.id = kOne}};
    for (std::uint32_t i = 1; i < participants; ++i) {
      record.participants[i].daemon = true;
      view.nodes.push_back({.id = NodeId{i + 1}, .daemon = true});
    }
    make(record).begin({{.first = 0, .count = pages}});
  }
  // A home by takeover, to which each participant has reported the same for all pages.
  void take_over(std::uint32_t participants, std::uint32_t pages, Have have) {
    RegionRecord record = region_of(participants);
    record.pages = pages;
    make(record);
    for (std::uint32_t i = 0; i < participants; ++i) tell(NodeId{i + 1}, report(pages, have));
    ASSERT_FALSE(home->rebuilding());
  }
  void keep(NodeId node) {
    settle();
    const std::optional<Keep> asked = said_to<Keep>(node);
    ASSERT_TRUE(asked);
    tell(node, Kept{.pages = asked->pages, .round = asked->round, .answer = KeepAnswer::yes});
  }
  // All of them are asked for the page that is sought: this one has it cached, and no other has it.
  void all_say_cached(NodeId has, std::uint32_t participants) {
    settle();
    std::uint32_t asked_now = 0;
    const Outbox sent = std::exchange(out, {});
    for (const Outgoing& each : sent.messages) {
      const auto* const asked = std::get_if<Keep>(&each.message.body);
      if (asked == nullptr) continue;
      ++asked_now;
      const KeepAnswer said = each.to == has ? KeepAnswer::cached : KeepAnswer::no;
      tell(each.to, Kept{.pages = asked->pages, .round = asked->round, .answer = said});
    }
    EXPECT_EQ(asked_now, participants);
    settle();
  }
  std::optional<Release> release_again(NodeId node) {
    clock.advance(config.resend_us);
    settle();
    return said_to<Release>(node);
  }
};

// The copy would be kept for ever.
TEST_F(HomeHealingTest, OnlyAnAnswerToAReleaseEndsIt) {
  publish(3, 1, 1);
  keep(view.nodes[1].id);
  // Node 3 keeps it, too, by an answer that came late.
  tell(kThree, Kept{.pages = runs(0, 1), .round = 999, .answer = KeepAnswer::yes});
  settle();
  const std::optional<Release> release = said_to<Release>(kThree);
  ASSERT_TRUE(release);
  tell(kThree, Landed{.pages = runs(0, 1)});
  ASSERT_TRUE(release_again(kThree)) << "it landed before";
  tell(kThree, Missing{.pages = runs(0, 1), .source = kThree});
  ASSERT_TRUE(release_again(kThree));
  tell(kThree, Landed{.pages = runs(0, 1), .round = release->round - 1});
  ASSERT_TRUE(release_again(kThree));
  tell(kThree, Landed{.pages = runs(0, 1), .round = release->round});
  EXPECT_FALSE(release_again(kThree));
}

// Each was asked to keep the page, and may have promised it in a message that was lost.
TEST_F(HomeHealingTest, WhoNeedNotKeepASoughtPageIsReleased) {
  take_over(3, 1, Have::cached);
  settle();
  const std::optional<Keep> asked = said_to<Keep>(kTwo);
  ASSERT_TRUE(asked);
  tell(kTwo, Kept{.pages = asked->pages, .round = asked->round, .answer = KeepAnswer::yes});
  EXPECT_EQ(home->pages()[0].keepers, place_bit(1));
  const std::optional<Release> release = release_again(kThree);
  ASSERT_TRUE(release);
  EXPECT_GT(release->round, asked->round);
  EXPECT_FALSE(said_to<Release>(kTwo));
  EXPECT_FALSE(said_to<Keep>(kThree));
}

TEST_F(HomeHealingTest, WhoDidNotTakeACopyInTimeIsReleasedAndAnotherIsAsked) {
  publish(3, 1, 1);
  settle();
  const std::optional<Keep> asked = said<Keep>();
  ASSERT_TRUE(asked);
  const NodeId first = out.messages.front().to;
  clock.advance(config.keep_us);
  settle();
  EXPECT_TRUE(said_to<Release>(first));
  EXPECT_FALSE(said_to<Keep>(first));
  EXPECT_TRUE(said_to<Keep>(first == kTwo ? kThree : kTwo));
}

TEST_F(HomeHealingTest, AVerificationIsNotEndedByACopyElsewhere) {
  publish(4, 2, 1);
  keep(kTwo);
  settle();
  tell(kFour, Missing{.pages = runs(0, 1), .source = kOne});
  settle();
  ASSERT_TRUE(said_to<Keep>(kOne));
  const std::uint64_t round = said_to<Keep>(kOne)->round;
  clock.advance(config.resend_us);
  keep(kThree);
  clock.advance(config.resend_us);
  settle();
  EXPECT_FALSE(said_to<Release>(kOne));
  ASSERT_TRUE(said_to<Keep>(kOne));
  EXPECT_EQ(said_to<Keep>(kOne)->round, round);
}

TEST_F(HomeHealingTest, AKeeperThatHasNoCopyIsReplaced) {
  publish(3, 1, 1);
  settle();
  const NodeId first = said_to<Keep>(kTwo) ? kTwo : kThree, second = first == kTwo ? kThree : kTwo;
  tell(first, Kept{.pages = runs(0, 1), .round = said<Keep>()->round, .answer = KeepAnswer::yes});
  settle();
  EXPECT_FALSE(said<Keep>());
  tell(second, Missing{.pages = runs(0, 1), .source = first});
  settle();
  ASSERT_TRUE(said_to<Keep>(first)) << "is asked before it is believed";
  tell(first, Kept{.pages = runs(0, 1), .round = said_to<Keep>(first)->round, .answer = KeepAnswer::no});
  settle();
  ASSERT_TRUE(said<Keep>());
  EXPECT_FALSE(said<Keep>()->sources.empty());
}

// Programs promise nothing. Who asks for such a page is sent to them; who is found without it is
// forgotten, and after the last one all are asked again.
TEST_F(HomeHealingTest, APageThatNobodyKeepsIsReadWhereItIsCachedUntilNobodyHasIt) {
  take_over(3, 1, Have::none);
  all_say_cached(kTwo, 3);
  EXPECT_EQ(home->pages()[0].state, HomeState::unkept);
  tell(kTwo, Want{{.first = 0, .count = 1}});
  EXPECT_FALSE(said<Sources>()) << "it is asked first whether it has it";
  settle();
  ASSERT_TRUE(said_to<Keep>(kTwo));
  tell(kTwo, Kept{.pages = runs(0, 1), .round = said_to<Keep>(kTwo)->round, .answer = KeepAnswer::cached});
  EXPECT_EQ(home->pages()[0].state, HomeState::unkept) << "it had asked before the page came";
  tell(kThree, Want{{.first = 0, .count = 1}});
  ASSERT_TRUE(said<Sources>());
  EXPECT_THAT(said<Sources>()->runs.front().nodes, ElementsAre(kTwo));
  tell(kThree, Missing{.pages = runs(0, 1), .source = kTwo});
  EXPECT_EQ(home->pages()[0].state, HomeState::seeking) << "node 3 may have it by now";
  all_say_cached(kThree, 3);
  EXPECT_EQ(home->pages()[0].state, HomeState::unkept);
  tell(kTwo, Missing{.pages = runs(0, 1), .source = kThree});
  all_say_cached(NodeId{}, 3);
  EXPECT_EQ(home->pages()[0].state, HomeState::lost);
}

TEST_F(HomeHealingTest, ALateYesForAPageThatNobodyKeepsIsNotReleased) {
  take_over(2, 1, Have::none);
  all_say_cached(kOne, 2);
  ASSERT_EQ(home->pages()[0].state, HomeState::unkept);
  tell(kTwo, Kept{.pages = runs(0, 1), .round = 0, .answer = KeepAnswer::yes});
  settle();
  EXPECT_FALSE(said<Release>());
  EXPECT_TRUE(said_to<Keep>(kTwo));
}

// Or else sources that are still on their way could be used after the answer that nothing is here.
TEST_F(HomeHealingTest, ASeekVoidsTheSourcesThatWereNamedBefore) {
  RegionRecord record = region_of(3);
  record.pages = 1;
  make(record);
  for (const NodeId node : {kOne, kTwo, kThree}) tell(node, report(1, node == kTwo ? Have::kept : Have::none));
  settle();
  tell(kThree, Want{{.first = 0, .count = 1}});
  ASSERT_TRUE(said<Sources>());
  const std::uint64_t before = said<Sources>()->round;
  std::erase_if(view.nodes, [](const KnownNode& node) { return node.id == kTwo; });
  settle();
  ASSERT_TRUE(said_to<Keep>(kThree));
  EXPECT_GT(said_to<Keep>(kThree)->round, before);
}

// A late promise for a page that nobody else has must not be released.
TEST_F(HomeHealingTest, ALateYesForASoughtPageIsNotReleased) {
  take_over(2, 1, Have::cached);
  tell(kTwo, Kept{.pages = runs(0, 1), .round = 0, .answer = KeepAnswer::yes});
  EXPECT_EQ(home->pages()[0].state, HomeState::seeking);
  settle();
  EXPECT_FALSE(said<Release>());
  EXPECT_TRUE(said_to<Keep>(kTwo));
}

TEST_F(HomeHealingTest, ReleasesThatAreNotAnsweredStopNoCopies) {
  publish(3, 1, 200);
  for (std::uint32_t page = 0; page < 100; ++page)
    tell(kThree, Kept{.pages = runs(page, 1), .round = 999, .answer = KeepAnswer::yes});
  settle();
  EXPECT_TRUE(said_to<Release>(kThree));
  EXPECT_TRUE(said<Keep>()) << "copies are made all the same";
}

TEST_F(HomeHealingTest, ASilentParticipantStopsNoSeekOfOtherPages) {
  constexpr std::uint32_t kMany = 6000;  // more than are asked for at one time
  take_over(3, kMany, Have::none);
  tell(kThree, Landed{.pages = runs(kMany - 1, 1)});
  // Nodes 1 and 3 answer; node 2 does not.
  for (int turn = 0; turn < 60 && home->pages()[kMany - 1].state != HomeState::held; ++turn) {
    settle();
    const std::vector<Outgoing> messages = std::exchange(out, {}).messages;
    for (const Outgoing& each : messages) {
      const auto* const asked = std::get_if<Keep>(&each.message.body);
      if (asked == nullptr || each.to == kTwo) continue;
      for (const auto& run : asked->pages) {
        const bool has = each.to == kThree && run.end() == kMany;
        const std::uint32_t no = run.count - (has ? 1 : 0);
        if (no != 0) tell(each.to, Kept{.pages = runs(run.first, no), .round = asked->round, .answer = KeepAnswer::no});
        if (has) tell(each.to, Kept{.pages = runs(kMany - 1, 1), .round = asked->round, .answer = KeepAnswer::yes});
      }
    }
    EXPECT_NE(home->pages()[0].state, HomeState::lost) << "node 2 may have it";
    clock.advance(config.resend_us);
  }
  EXPECT_EQ(home->pages()[kMany - 1].keepers, place_bit(2));
}

TEST_F(HomeHealingTest, WithoutAFreePlaceCopiesGoToParticipants) {
  publish(kMostParticipants, 1, 1);
  view.nodes.push_back({.id = NodeId{99}, .daemon = true, .rack = "far", .host = "far", .free_bytes = 1ull << 40});
  settle();
  EXPECT_TRUE(said<Keep>());
}

// A page that is lost needs no copies; its publisher has to hear of it.
TEST_F(HomeHealingTest, APublicationOfWhichAPageWasLostMeanwhileSaysSo) {
  publish(2, 1, 2);
  home->await_copies(Ticket{5}, 60'000'000);
  tell(kOne, Missing{.pages = runs(1, 1), .source = kOne});
  for (int turn = 0; turn < 4; ++turn) {
    settle();
    const Outbox sent = std::exchange(out, {});
    for (const Outgoing& each : sent.messages)
      if (const auto* asked = std::get_if<Keep>(&each.message.body))
        for (const auto& run : asked->pages)
          for (std::uint32_t page = run.first; page < run.end(); ++page)
            tell(each.to, Kept{.pages = runs(page, 1),
                               .round = asked->round,
                               .answer = page == 0 ? KeepAnswer::yes : KeepAnswer::no});
    for (const DirectoryEvent& event : sent.events) {
      const auto* const ended = std::get_if<PublishEnded>(&event);
      if (ended == nullptr) continue;
      ASSERT_FALSE(ended->serial);
      EXPECT_EQ(ended->serial.error().status, VMEM_ERROR_LOST);
      EXPECT_THAT(ended->serial.error().message, ::testing::HasSubstr("page 1"));
      EXPECT_TRUE(ended->published);
      return;
    }
    clock.advance(config.resend_us);
  }
  ADD_FAILURE() << "it did not end";
}

TEST_F(HomeHealingTest, APublicationThatEndsEarlyNamesThePageThatWasLost) {
  RegionRecord record = region_of(1);
  record.pages = 2;
  record.copies = 1;
  make(record).await_copies(Ticket{5}, 60'000'000);
  tell(kOne, Report{.from = 0, .to = 2, .runs = {{.pages = {.first = 1, .count = 1}, .have = Have::kept}}});
  settle();
  const std::optional<Keep> asked = said_to<Keep>(kOne);
  ASSERT_TRUE(asked);
  tell(kOne, Kept{.pages = asked->pages, .round = asked->round, .answer = KeepAnswer::no});
  ASSERT_EQ(home->pages()[0].state, HomeState::lost);
  settle();
  EXPECT_TRUE(out.events.empty() || !std::holds_alternative<PublishEnded>(out.events.back())) << "page 1 lacks a copy";
  clock.advance(60'000'000);
  settle();
  ASSERT_FALSE(out.events.empty());
  const auto& ended = std::get<PublishEnded>(out.events.back());
  ASSERT_FALSE(ended.serial);
  EXPECT_EQ(ended.serial.error().status, VMEM_ERROR_LOST);
  EXPECT_THAT(ended.serial.error().message, ::testing::HasSubstr("page 0"));
}

TEST_F(HomeHealingTest, APublicationEndsWhenItsRegionIsRemoved) {
  RegionRecord removed = region_of(1);
  removed.removed = true;
  removed.copies = 1;
  make(removed).await_copies(Ticket{5}, 60'000'000);
  tell(kOne, report(8, Have::kept));
  settle();
  ASSERT_EQ(out.events.size(), 1u);
  const auto& ended = std::get<PublishEnded>(out.events.front());
  ASSERT_FALSE(ended.serial);
  EXPECT_EQ(ended.serial.error().status, VMEM_ERROR_LOST);
}

constexpr std::uint32_t kMillion = 1'000'000;

// A scan of all pages takes hundreds of steps.
TEST_F(HomeHealingTest, OneMissingPageOfAMillionCostsAFewSteps) {
  publish(3, 0, kMillion);
  EXPECT_GT(settle(), 200) << "looks at all once";
  EXPECT_EQ(settle(), 0);
  tell(kTwo, Landed{.pages = runs(500'000, 2)});
  tell(kThree, Missing{.pages = runs(500'000, 1), .source = kTwo});
  EXPECT_LE(settle(), 2);
  home->view_changed();
  EXPECT_LE(settle(), 2);
}

TEST_F(HomeHealingTest, PagesThatNoDaemonCanKeepAreLookedAtWhenNodesChange) {
  publish(1, 1, kMillion);
  settle();
  for (int i = 0; i < 100; ++i) {
    clock.advance(config.resend_us);
    EXPECT_EQ(settle(), 0);
  }
  home->view_changed();
  EXPECT_LE(settle(), int(kMillion / 4096 + 2));
  view.nodes.push_back({.id = kTwo, .daemon = true});
  home->view_changed();
  EXPECT_GT(settle(), 0);
  EXPECT_FALSE(registry.posted.empty()) << "it is invited";
}

// What its only daemon has refused is asked of it again, and not before it may be asked.
TEST_F(HomeHealingTest, PagesAreLookedAtWhenADaemonMayBeAskedAgain) {
  publish(2, 1, 3);
  settle();
  ASSERT_TRUE(said_to<Keep>(kTwo));
  const Keep asked = *said_to<Keep>(kTwo);
  tell(kTwo, Kept{.pages = runs(0, 3), .round = asked.round, .answer = KeepAnswer::no_room});
  EXPECT_GT(settle(), 0);
  std::uint64_t waited_us = 0;
  for (; waited_us + config.resend_us < config.avoid_us; waited_us += config.resend_us) {
    clock.advance(config.resend_us);
    EXPECT_EQ(settle(), 0);
  }
  clock.advance(config.avoid_us - waited_us);
  EXPECT_GT(settle(), 0);
  EXPECT_TRUE(said_to<Keep>(kTwo));
}

// It was given up for a time, and answers after all.
TEST_F(HomeHealingTest, PagesAreLookedAtWhenADaemonAnswersLate) {
  publish(2, 1, 2);
  settle();
  ASSERT_TRUE(said_to<Keep>(kTwo));
  const Keep asked = *said_to<Keep>(kTwo);
  tell(kTwo, Kept{.pages = runs(0, 1), .round = asked.round, .answer = KeepAnswer::no});
  settle();
  tell(kTwo, Kept{.pages = runs(1, 1), .round = asked.round, .answer = KeepAnswer::yes});
  settle();
  const std::optional<Keep> again = said_to<Keep>(kTwo);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->pages, runs(0, 1));
}

// Its only daemon was too late, and has the page after all when its keeper begins to leave.
TEST_F(HomeHealingTest, APageIsLookedAtWhenADaemonHasItAfterAll) {
  publish(2, 1, 1);
  settle();
  ASSERT_TRUE(said_to<Keep>(kTwo));
  clock.advance(config.keep_us);
  settle();
  const std::optional<Release> release = said_to<Release>(kTwo);
  ASSERT_TRUE(release);
  tell(kOne, Leaving{.left_us = 2'000'000, .from = 0});
  settle();
  EXPECT_FALSE(said_to<Keep>(kTwo));
  tell(kTwo, Landed{.pages = runs(0, 1), .round = release->round});
  settle();
  EXPECT_TRUE(said_to<Keep>(kTwo));
}

TEST_F(HomeHealingTest, LongAnswersCoverARangeEach) {
  publish(2, 0, kMillion);
  tell(kTwo, Open{.from = 100'000});
  ASSERT_TRUE(said<Opened>());
  EXPECT_EQ(said<Opened>()->to, 100'000 + kMostRange);
  tell(kTwo, Open{.from = kMillion - 1});
  EXPECT_EQ(said<Opened>()->to, kMillion);
  tell(kTwo, Open{.from = UINT32_MAX});
  EXPECT_EQ(said<Opened>()->to, UINT32_MAX);
}

TEST_F(HomeHealingTest, WhatALeavingNodeLosesIsToldInParts) {
  publish(2, 0, 4 * kMostRuns);
  for (std::uint32_t page = 0; page < 4 * kMostRuns; page += 2) tell(kTwo, Landed{.pages = runs(page, 1)});
  tell(kOne, Leaving{.left_us = 0, .from = 0});
  std::uint32_t from = 0, lost = 0;
  for (int part = 0; part < 5 && from < 4 * kMostRuns; ++part) {
    tell(kOne, Leaving{.left_us = 0, .from = from});
    const std::optional<LeaveDone> done = said<LeaveDone>();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->from, from);
    EXPECT_LE(done->lost.size(), kMostRuns);
    for (const auto& run : done->lost) {
      EXPECT_EQ(run, (directory::Run{.first = lost * 2 + 1, .count = 1}));
      ++lost;
    }
    from = done->to;
  }
  EXPECT_EQ(lost, 2 * kMostRuns);
}

TEST_F(HomeHealingTest, ANodeThatLeavesGoesWhenEachOfItsPagesHasAKeeperThatStays) {
  publish(3, 1, 2);
  settle();
  const NodeId first = out.messages.front().to, second = first == kTwo ? kThree : kTwo;
  const Keep asked = *said_to<Keep>(first);
  tell(first, Kept{.pages = runs(0, 1), .round = asked.round, .answer = KeepAnswer::yes});
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  EXPECT_FALSE(said<LeaveDone>()) << "page 1 is kept here only";
  tell(first, Leaving{.left_us = 60'000'000, .from = 0});
  EXPECT_FALSE(said<LeaveDone>()) << "node 1 is to leave, too";
  keep(second);
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  EXPECT_FALSE(said<LeaveDone>());
  tell(first, Kept{.pages = runs(1, 1), .round = asked.round, .answer = KeepAnswer::yes});
  settle();
  if (const std::optional<Keep> rest = said_to<Keep>(second))
    tell(second, Kept{.pages = rest->pages, .round = rest->round, .answer = KeepAnswer::yes});
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  ASSERT_TRUE(said<LeaveDone>());
  EXPECT_TRUE(said<LeaveDone>()->lost.empty());
}

TEST_F(HomeHealingTest, ANodeThatLeavesWaitsForNoDaemonThatHasNoRoom) {
  publish(2, 0, 2);
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  settle();
  ASSERT_TRUE(said_to<Keep>(kTwo));
  const Keep asked = *said_to<Keep>(kTwo);
  tell(kTwo, Kept{.pages = runs(1, 1), .round = asked.round, .answer = KeepAnswer::no_room});
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  EXPECT_FALSE(said<LeaveDone>()) << "page 0 may have room";
  tell(kTwo, Kept{.pages = runs(0, 1), .round = asked.round, .answer = KeepAnswer::yes});
  tell(kOne, Leaving{.left_us = 60'000'000, .from = 0});
  ASSERT_TRUE(said<LeaveDone>());
  EXPECT_EQ(said<LeaveDone>()->lost, runs(1, 1));
}

}  // namespace
}  // namespace vmem::cluster::directory
