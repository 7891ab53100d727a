// What a participant promises and refuses, message by message.
#include "cluster/directory/participant.hpp"

#include <gmock/gmock.h>

#include "cluster/directory/keep_desk.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Run kPage{.first = 3, .count = 1};
const Runs kPages{kPage};

RegionRecord region() {
  RegionRecord record;
  record.serial = Serial{7};
  record.name = "table";
  record.pages = 8;
  record.home = NodeId{1};
  record.term = Term{2};
  record.participants[1] = {.node = NodeId{2}, .session = Session{5}, .daemon = false};
  return record;
}

class ParticipantTest : public ::testing::Test {
 protected:
  ParticipantTest() {
    tell(Opened{.place = 1, .from = 0, .to = 8, .free = {{.first = 7, .count = 1}}});
    EXPECT_EQ(opener.stage(), Participant::Stage::open);
    out = {};
  }
  void tell(Body body, Term term = Term{2}, Session session = Session{5}) {
    opener.handle({.serial = Serial{7}, .term = term, .session = session, .body = std::move(body)}, now_us, out);
  }
  // Wants the page, and is told to ask node 1; returns the fetch.
  std::optional<Fetch> want(std::uint64_t round) {
    opener.want(Ticket{9}, kPage, now_us + 1'000'000, out);
    tell(Sources{.round = round, .runs = {{.pages = kPage, .state = PageState::published, .nodes = {NodeId{1}}}}});
    const std::optional<Answered> answered = event<Answered>();
    return answered ? std::optional(answered->fetch) : std::nullopt;
  }
  template <class Event>
  std::optional<Event> event() {
    for (const DirectoryEvent& each : out.events)
      if (const auto* found = std::get_if<Event>(&each)) return *found;
    return std::nullopt;
  }
  template <class Body>
  std::optional<Body> said() {
    std::optional<Body> last;
    for (const Outgoing& each : out.messages)
      if (const auto* found = std::get_if<Body>(&each.message.body)) last = *found;
    return last;
  }
  void fetch() {
    const std::optional<Fetch> number = want(1);
    ASSERT_TRUE(number);
    EXPECT_TRUE(opener.arrived(kPage.first, *number));
  }

  const DirectoryConfig config;
  std::uint64_t now_us = 1'000;
  Outbox out;
  Participant opener{
      config,
      {.region = region(), .self = NodeId{2}, .session = Session{5}, .ticket = Ticket{1}, .deadline_us = 9'000'000}};
};

TEST_F(ParticipantTest, NoIsAPromiseToRefuseWhatIsOnItsWay) {
  const std::optional<Fetch> number = want(1);
  ASSERT_TRUE(number);
  tell(Keep{.pages = kPages, .round = 2, .sources = {}});
  ASSERT_TRUE(said<Kept>());
  EXPECT_FALSE(said<Kept>()->answer == KeepAnswer::yes);
  EXPECT_FALSE(opener.arrived(kPage.first, *number)) << "late bytes";
  EXPECT_EQ(opener.have(kPage.first), Have::none);
}

TEST_F(ParticipantTest, NoVoidsSourcesThatWereNamedBefore) {
  tell(Keep{.pages = kPages, .round = 4, .sources = {}});
  EXPECT_FALSE(want(3)) << "they may name a node that was let go since";
  EXPECT_TRUE(want(4));
}

TEST_F(ParticipantTest, AFailedCopyIsAPromiseToo) {
  tell(Keep{.pages = kPages, .round = 2, .sources = {NodeId{1}}});
  const std::optional<KeepWanted> wanted = event<KeepWanted>();
  ASSERT_TRUE(wanted);
  opener.kept(*wanted, KeepAnswer::no, out);
  EXPECT_FALSE(said<Kept>()->answer == KeepAnswer::yes);
  EXPECT_FALSE(opener.arrived(kPage.first, wanted->fetch));
}

TEST_F(ParticipantTest, YesNeedsThePageAndKeepsIt) {
  tell(Keep{.pages = kPages, .round = 2, .sources = {NodeId{1}}});
  const std::optional<KeepWanted> wanted = event<KeepWanted>();
  ASSERT_TRUE(wanted);
  EXPECT_TRUE(opener.arrived(kPage.first, wanted->fetch));
  opener.kept(*wanted, KeepAnswer::yes, out);
  EXPECT_TRUE(said<Kept>()->answer == KeepAnswer::yes);
  EXPECT_EQ(opener.have(kPage.first), Have::kept);
  EXPECT_FALSE(opener.drop(kPage)) << "a kept page may not be dropped";
}

TEST_F(ParticipantTest, AReleaseThatAKeepHasOvertakenIsIgnored) {
  fetch();
  tell(Keep{.pages = kPages, .round = 6, .sources = {}});
  tell(Release{.pages = kPages, .round = 5});
  EXPECT_EQ(opener.have(kPage.first), Have::kept);
  tell(Release{.pages = kPages, .round = 7});
  EXPECT_EQ(opener.have(kPage.first), Have::cached);
  EXPECT_TRUE(event<ReleaseAllowed>());
  EXPECT_TRUE(opener.drop(kPage));
}

TEST_F(ParticipantTest, OtherTermsAndSessionsAreIgnored) {
  fetch();
  tell(Keep{.pages = kPages, .round = 6, .sources = {}}, Term{1});
  tell(Keep{.pages = kPages, .round = 6, .sources = {}}, Term{3});
  tell(Keep{.pages = kPages, .round = 6, .sources = {}}, Term{2}, Session{4});
  EXPECT_EQ(opener.have(kPage.first), Have::cached);
  EXPECT_FALSE(said<Kept>());
}

TEST_F(ParticipantTest, ANewTermBeginsItsRoundsAnewAndVoidsCopiesInFlight) {
  fetch();
  tell(Keep{.pages = kPages, .round = 60, .sources = {}});
  tell(Keep{.pages = {{.first = 4, .count = 1}}, .round = 61, .sources = {NodeId{1}}});
  const std::optional<KeepWanted> wanted = event<KeepWanted>();
  RegionRecord later = region();
  later.term = Term{3};
  later.home = NodeId{4};
  opener.learn(&later, out);
  out = {};
  opener.kept(*wanted, KeepAnswer::yes, out);
  EXPECT_FALSE(said<Kept>()) << "the old home's round";
  tell(Keep{.pages = {{.first = 4, .count = 1}}, .round = 1, .sources = {NodeId{1}}}, Term{3});
  EXPECT_TRUE(event<KeepWanted>()) << "a round of the new one is no earlier one";
  tell(Release{.pages = kPages, .round = 1}, Term{3});
  EXPECT_EQ(opener.have(kPage.first), Have::cached);
  tell(NewTerm{.home = NodeId{4}, .from = 0}, Term{3});
  ASSERT_TRUE(said<Report>());
  EXPECT_THAT(said<Report>()->runs, ElementsAre(HaveRun{.pages = kPage, .have = Have::cached},
                                                HaveRun{.pages = {.first = 7, .count = 1}, .have = Have::free}));
  EXPECT_EQ(out.messages.back().to, NodeId{4});
}

TEST_F(ParticipantTest, AWantEndsAtItsDeadlineAndNamesPageHomeAndNode) {
  opener.want(Ticket{9}, kPage, now_us + 1'000'000, out);
  now_us += 1'000'000;
  EXPECT_EQ(opener.due_us() <= now_us, true);
  opener.step(now_us, out);
  const std::optional<WantEnded> ended = event<WantEnded>();
  ASSERT_TRUE(ended && !ended->status);
  EXPECT_EQ(ended->status.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(ended->status.error().message,
              HasSubstr("page 3 of region 'table' was asked for, and its home, node 1 (term 2), did not tell node 2"));
}

// Nobody takes over what it keeps; a reader keeps nothing.
TEST_F(ParticipantTest, AClosingThatTheEndOfTheMembershipOvertakesSaysWhatMayBeLost) {
  const Error why{VMEM_ERROR_NOT_INITIALIZED, 0, "no member"};
  opener.close(Ticket{3}, now_us + 1'000'000, now_us);
  EXPECT_FALSE(opener.end(why, out));
  ASSERT_TRUE(event<CloseEnded>());
  EXPECT_TRUE(event<CloseEnded>()->status);
  out = {};
  Participant publisher(config, {.region = region(), .self = NodeId{2}, .session = Session{5}, .ticket = {}});
  publisher.begin({{.first = 3, .count = 2}});
  publisher.close(Ticket{4}, now_us + 30'000'000, now_us);
  publisher.step(now_us, out);
  EXPECT_TRUE(publisher.end(why, out));
  const std::optional<CloseEnded> ended = event<CloseEnded>();
  ASSERT_TRUE(ended && !ended->status);
  EXPECT_EQ(ended->status.error().status, VMEM_ERROR_LOST);
  EXPECT_THAT(ended->status.error().message, HasSubstr("'table'"));
  EXPECT_THAT(ended->status.error().message, HasSubstr("pages 3 to 4"));
}

TEST_F(ParticipantTest, AnOpeningThatIsRefusedAtEachAddressEndsAtOnceAndSaysWhy) {
  NoPath trouble{.why = "no such secret", .refused = true, .at_us = now_us - 1};
  Participant refused(config, {.region = region(),
                               .self = NodeId{2},
                               .session = Session{6},
                               .ticket = Ticket{3},
                               .asked_us = now_us,
                               .deadline_us = 9'000'000,
                               .no_path = [&](NodeId) { return trouble; }});
  refused.step(now_us, out);
  EXPECT_FALSE(event<OpenEnded>()) << "that was before it was asked";
  trouble.at_us = now_us;
  now_us += config.resend_us;
  refused.step(now_us, out);
  ASSERT_TRUE(event<OpenEnded>());
  EXPECT_EQ(event<OpenEnded>()->serial.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(event<OpenEnded>()->serial.error().message,
              HasSubstr("its home, node 1 (term 2), refuses the connection: no such secret"));
}

TEST_F(ParticipantTest, AnOpeningSaysAtItsDeadlineWhyItsHomeIsNotReached) {
  Participant cut_off(
      config, {.region = region(),
               .self = NodeId{2},
               .session = Session{6},
               .ticket = Ticket{3},
               .deadline_us = now_us + 1,
               .no_path = [](NodeId) { return NoPath{.why = "no listener", .refused = false, .at_us = UINT64_MAX}; }});
  cut_off.step(now_us, out);
  EXPECT_FALSE(event<OpenEnded>());
  cut_off.step(now_us + 1, out);
  ASSERT_TRUE(event<OpenEnded>());
  EXPECT_EQ(event<OpenEnded>()->serial.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(event<OpenEnded>()->serial.error().message, HasSubstr("no listener"));
}

// What is still on its way from an earlier session could land after this one said that it has none.
TEST_F(ParticipantTest, FetchesOfEarlierSessionsBringNothing) {
  Participant again(config, {.region = region(), .self = NodeId{2}, .session = Session{6}, .before = Fetch{40}});
  again.begin({{.first = 0, .count = 1}});
  EXPECT_FALSE(again.arrived(kPage.first, Fetch{40}));
  EXPECT_TRUE(again.arrived(kPage.first, Fetch{41}));
}

// A reading of the record that is older than the end would begin the session anew.
TEST_F(ParticipantTest, ASessionEndsWhenTheRecordIsReadWithoutIt) {
  tell(Closed{});
  EXPECT_EQ(opener.stage(), Participant::Stage::open) << "it was not to be closed";
  RegionRecord record = region();
  opener.close(Ticket{3}, now_us, now_us);
  opener.step(now_us, out);
  EXPECT_TRUE(event<CloseEnded>());
  tell(Closed{});
  opener.learn(&record, out);
  EXPECT_EQ(opener.stage(), Participant::Stage::closing);
  record.participants[1] = {};
  opener.learn(&record, out);
  EXPECT_EQ(opener.stage(), Participant::Stage::over);
}

TEST_F(ParticipantTest, ASessionThatNoRecordHasListedEndsWhenTheHomeSaysSo) {
  Participant again(config, {.region = region(), .self = NodeId{2}, .session = Session{6}, .ticket = Ticket{3}});
  again.step(now_us, out);
  EXPECT_EQ(event<OpenEnded>()->serial.error().status, VMEM_ERROR_TIMEOUT);
  again.handle({.serial = Serial{7}, .term = Term{2}, .session = Session{6}, .body = Closed{}}, now_us, out);
  EXPECT_EQ(again.stage(), Participant::Stage::over);
}

// The home has it in the record, and erases no region that somebody takes part in.
// Its home had admitted this process under the id that it had before, and has dropped that since.
TEST_F(ParticipantTest, WhatItsHomeHasDroppedItOpensAnewAndSaysWhatItHas) {
  fetch();
  opener.step(now_us, out);
  tell(Closed{});
  opener.step(now_us, out);
  EXPECT_FALSE(said<Open>()) << "the record lists this session: it is an earlier answer";
  RegionRecord without = region();
  without.participants = {};
  opener.learn(&without, out);
  tell(Closed{});
  EXPECT_EQ(opener.stage(), Participant::Stage::open);
  EXPECT_LE(opener.due_us(), now_us);
  opener.step(now_us, out);
  ASSERT_TRUE(said<Open>());
  out = {};
  opener.step(now_us, out);
  EXPECT_FALSE(said<Open>()) << "not yet again";
  now_us += config.resend_us;
  opener.step(now_us, out);
  EXPECT_TRUE(said<Open>());
  out = {};
  tell(Opened{.place = 1, .from = 0, .to = 8, .free = {{.first = 7, .count = 1}}});
  EXPECT_FALSE(event<OpenEnded>()) << "nobody waits for it";
  opener.step(now_us, out);
  ASSERT_TRUE(said<Landed>());
  EXPECT_THAT(said<Landed>()->pages, ElementsAre(kPage));
  EXPECT_FALSE(said<Open>());
}

TEST_F(ParticipantTest, WhatOpensAnewMayBeClosedMeanwhile) {
  RegionRecord without = region();
  without.participants = {};
  opener.learn(&without, out);
  tell(Closed{});
  opener.close(Ticket{2}, now_us + 1'000'000, now_us);
  tell(Opened{.place = 1, .from = 0, .to = 8, .free = {}});
  EXPECT_EQ(opener.stage(), Participant::Stage::closing);
  while (opener.step(now_us, out)) {
  }
  EXPECT_TRUE(said<Close>());
}

TEST_F(ParticipantTest, WhoIsRefusedOrFindsTheRegionRemovedStillSaysClose) {
  for (const Body& body : {Body{RefusedBy{Refusal::removed}}, Body{Removed{}}})
    for (const bool asked : {false, true}) {
      Participant invited(config, {.region = region(),
                                   .self = NodeId{2},
                                   .session = Session{5},
                                   .ticket = asked ? std::optional(Ticket{3}) : std::nullopt,
                                   .deadline_us = 9'000'000});
      out = {};
      invited.handle({.serial = Serial{7}, .term = Term{2}, .session = Session{5}, .body = body}, now_us, out);
      if (asked) {
        ASSERT_TRUE(event<OpenEnded>());
        EXPECT_EQ(event<OpenEnded>()->serial.error().status, VMEM_ERROR_LOST);
      }
      EXPECT_EQ(invited.stage(), Participant::Stage::closing);
      invited.step(now_us, out);
      EXPECT_TRUE(said<Close>());
    }
}

// Its answer might be lost, and nobody would ask again.
TEST_F(ParticipantTest, ADoubledKeepThatWasRefusedIsRefusedAgain) {
  tell(Keep{.pages = kPages, .round = 4, .sources = {}});
  const std::optional<Fetch> number = want(4);
  ASSERT_TRUE(number);
  EXPECT_TRUE(opener.arrived(kPage.first, *number));
  out = {};
  tell(Keep{.pages = kPages, .round = 4, .sources = {}});
  ASSERT_TRUE(said<Kept>());
  EXPECT_FALSE(said<Kept>()->answer == KeepAnswer::yes);
  EXPECT_EQ(opener.have(kPage.first), Have::cached);
  tell(Keep{.pages = kPages, .round = 5, .sources = {}});
  EXPECT_TRUE(said<Kept>()->answer == KeepAnswer::yes);
}

TEST_F(ParticipantTest, AnAnswerToAReleaseNamesItsRound) {
  fetch();
  tell(Release{.pages = {{.first = 3, .count = 2}}, .round = 7});
  ASSERT_TRUE(said<Landed>() && said<Missing>());
  EXPECT_EQ(said<Landed>()->round, 7u);
  EXPECT_EQ(said<Missing>()->round, 7u);
  EXPECT_EQ(said<Missing>()->pages, (Runs{{.first = 4, .count = 1}}));
}

// Or else its home would name it as a source for ever.
TEST_F(ParticipantTest, WhatANodeHasLostItDoesNotPromiseToKeep) {
  fetch();
  tell(Keep{.pages = kPages, .round = 4, .sources = {}});
  ASSERT_TRUE(said<Kept>());
  ASSERT_EQ(opener.have(kPage.first), Have::kept);
  out = {};
  opener.missing(kPages, NodeId{2}, out);
  ASSERT_TRUE(said<Missing>());
  EXPECT_EQ(said<Missing>()->source, NodeId{2});
  EXPECT_EQ(opener.have(kPage.first), Have::none);
  tell(Keep{.pages = kPages, .round = 5, .sources = {}});
  ASSERT_TRUE(said<Kept>());
  EXPECT_EQ(said<Kept>()->answer, KeepAnswer::no);
}

// It promises nothing, and may have dropped the page since.
TEST_F(ParticipantTest, AProgramSaysWhatItHasCachedAndForgetsItWhenItAsksAgain) {
  DirectoryConfig programs;
  programs.keeps_copies = false;
  Participant program(
      programs,
      {.region = region(), .self = NodeId{2}, .session = Session{5}, .ticket = Ticket{1}, .deadline_us = 9'000'000});
  const auto hear = [&](Body body) {
    out = {};
    program.handle({.serial = Serial{7}, .term = Term{2}, .session = Session{5}, .body = std::move(body)}, now_us, out);
  };
  hear(Opened{.place = 1, .from = 0, .to = 8, .free = {}});
  program.want(Ticket{9}, kPage, now_us + 1'000'000, out);
  hear(Sources{.round = 1, .runs = {{.pages = kPage, .state = PageState::published, .nodes = {NodeId{1}}}}});
  ASSERT_TRUE(event<Answered>());
  ASSERT_TRUE(program.arrived(kPage.first, event<Answered>()->fetch));
  hear(Keep{.pages = kPages, .round = 2, .sources = {}});
  ASSERT_TRUE(said<Kept>());
  EXPECT_EQ(said<Kept>()->answer, KeepAnswer::cached);
  EXPECT_EQ(program.have(kPage.first), Have::cached);
  program.want(Ticket{10}, kPage, now_us + 1'000'000, out);
  EXPECT_EQ(program.have(kPage.first), Have::none);
  hear(Keep{.pages = kPages, .round = 3, .sources = {}});
  EXPECT_EQ(said<Kept>()->answer, KeepAnswer::no);
}

TEST_F(ParticipantTest, AWantEndsInLostWhenItsRegionIsClosedOrErased) {
  const auto ends_lost = [&] {
    const std::optional<WantEnded> ended = event<WantEnded>();
    return ended && !ended->status && ended->status.error().status == VMEM_ERROR_LOST;
  };
  opener.want(Ticket{9}, kPage, now_us + 60'000'000, out);
  opener.close(Ticket{10}, now_us, now_us);
  opener.step(now_us, out);
  EXPECT_TRUE(ends_lost());
  out = {};
  Participant publisher(config, {.region = region(), .self = NodeId{2}, .session = Session{5}, .ticket = {}});
  publisher.begin({{.first = 3, .count = 1}});
  publisher.want(Ticket{11}, kPage, now_us + 60'000'000, out);
  publisher.learn(nullptr, out);
  EXPECT_TRUE(ends_lost());
}

TEST_F(ParticipantTest, AReportCoversARange) {
  RegionRecord large = region();
  large.pages = 3 * kMostRange;
  Participant publisher(config, {.region = large, .self = NodeId{1}, .session = Session{5}, .ticket = {}});
  publisher.begin({{.first = 0, .count = large.pages}});
  const auto ask = [&](std::uint32_t from) {
    out = {};
    publisher.handle({.serial = Serial{7}, .term = Term{2}, .session = Session{5}, .body = NewTerm{NodeId{1}, from}},
                     now_us, out);
    return said<Report>().value();
  };
  EXPECT_EQ(ask(5).to, 5 + kMostRange);
  EXPECT_EQ(ask(5).runs.front().have, Have::kept);
  EXPECT_EQ(ask(5 + kMostRange).runs.front().pages.first, 5 + kMostRange);
  EXPECT_EQ(ask(2 * kMostRange + 9).to, large.pages);
}

TEST_F(ParticipantTest, AFreePageNeedsNoHome) {
  opener.want(Ticket{9}, {.first = 7, .count = 1}, now_us + 1, out);
  ASSERT_TRUE(event<Answered>());
  EXPECT_EQ(event<Answered>()->run.state, PageState::free);
  EXPECT_TRUE(event<WantEnded>()->status);
}

TEST(KeepDesk, AnAnswerCountsInItsRoundAlone) {
  KeepDesk desk;
  desk.ask(3, 1, {.kind = KeepDesk::Kind::fetch, .round = 5, .sources = {}});
  EXPECT_FALSE(desk.answer(3, 1, 4)) << "late";
  EXPECT_FALSE(desk.answer(3, 2, 5)) << "of another node";
  EXPECT_EQ(desk.answer(3, 1, 5), KeepDesk::Kind::fetch);
  EXPECT_FALSE(desk.answer(3, 1, 5)) << "doubled";
}

}  // namespace
}  // namespace vmem::cluster::directory
