// The messages' layout: read as written, and what is made of bytes that write() does not make.
#include "cluster/directory/directory_message.hpp"

#include <gmock/gmock.h>

#include <random>

namespace vmem::cluster::directory {
namespace {

using ::testing::HasSubstr;

const Runs kSomeRuns{{.first = 0, .count = 3}, {.first = 5, .count = 1}};

std::vector<Body> bodies() {
  return {
      Open{.from = 7},
      Opened{.place = 63, .from = 0, .to = 16, .free = kSomeRuns},
      RefusedBy{Refusal::tenant},
      Close{},
      Closed{},
      Want{{.first = 4, .count = 9}},
      Sources{.round = 1ull << 40,
              .runs = {{.pages = {0, 2}, .state = PageState::published, .nodes = {NodeId{1}, NodeId{2}, NodeId{3}}},
                       {.pages = {2, 1}, .state = PageState::lost, .nodes = {}}}},
      Landed{kSomeRuns},
      Missing{.pages = kSomeRuns, .source = NodeId{8}},
      Keep{.pages = kSomeRuns, .round = 9, .sources = {NodeId{4}}},
      Kept{.pages = kSomeRuns, .round = 9, .answer = KeepAnswer::yes},
      Release{.pages = kSomeRuns, .round = 10},
      NewTerm{.home = NodeId{5}, .from = 512},
      Report{
          .from = 0, .to = 6, .runs = {{.pages = {0, 3}, .have = Have::kept}, {.pages = {5, 1}, .have = Have::free}}},
      Leaving{.left_us = 1'000'000, .from = 0},
      LeaveDone{.from = 0, .to = 16, .lost = kSomeRuns},
      Remove{},
      Removed{},
      Stale{NodeId{6}}};
}

std::string written(const Body& body) {
  return write({.serial = Serial{77}, .term = Term{3}, .session = Session{12}, .body = body});
}

TEST(DirectoryMessage, EveryKindIsReadAsItWasWritten) {
  ASSERT_EQ(bodies().size(), std::variant_size_v<Body>);
  std::size_t kind = 0;
  for (const Body& body : bodies()) {
    EXPECT_EQ(body.index(), kind++);
    const std::string bytes = written(body);
    const Result<Message> message = parse(bytes);
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->serial, Serial{77});
    EXPECT_EQ(message->term, Term{3});
    EXPECT_EQ(message->session, Session{12});
    EXPECT_EQ(write(*message), bytes);
  }
}

TEST(DirectoryMessage, TheLayoutIsFixed) {
  EXPECT_EQ(written(Want{{.first = 4, .count = 0x0102}}), std::string("VD\x02\x05"
                                                                      "\x4d\0\0\0\0\0\0\0"
                                                                      "\x03\0\0\0\0\0\0\0"
                                                                      "\x0c\0\0\0"
                                                                      "\x04\0\0\0"
                                                                      "\x02\x01\0\0",
                                                                      32));
}

TEST(DirectoryMessage, EveryTruncationAndEveryAdditionIsRefused) {
  for (const Body& body : bodies()) {
    const std::string bytes = written(body);
    for (std::size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(parse(bytes.substr(0, size)));
    EXPECT_FALSE(parse(bytes + '\0'));
  }
}

// What is accepted all the same is a message: it is written again as it was.
TEST(DirectoryMessage, NoiseIsRefusedOrIsAMessage) {
  std::mt19937_64 random(1);
  std::uint64_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    for (const Body& body : bodies()) {
      std::string bytes = written(body);
      for (std::uint64_t i = 1 + random() % 3; i > 0; --i) bytes[random() % bytes.size()] = char(random());
      const Result<Message> message = parse(bytes);
      if (!message) continue;
      ++accepted;
      EXPECT_EQ(write(*message), bytes);
    }
  }
  EXPECT_GT(accepted, 1000u);
}

TEST(DirectoryMessage, RunsThatOverlapOrAreEmptyOrLeaveTheirRangeAreRefused) {
  EXPECT_FALSE(parse(written(Landed{{{.first = 0, .count = 3}, {.first = 2, .count = 1}}})));
  EXPECT_FALSE(parse(written(Landed{{{.first = 5, .count = 1}, {.first = 2, .count = 1}}})));
  EXPECT_FALSE(parse(written(Landed{{{.first = 5, .count = 0}}})));
  EXPECT_FALSE(parse(written(Want{{.first = UINT32_MAX, .count = 2}})));
  EXPECT_FALSE(parse(written(Opened{.place = 0, .from = 4, .to = 8, .free = {{.first = 3, .count = 1}}})));
  EXPECT_FALSE(parse(written(LeaveDone{.from = 0, .to = 8, .lost = {{.first = 7, .count = 2}}})));
  EXPECT_FALSE(parse(written(Report{.from = 8, .to = 4, .runs = {}})));
}

TEST(DirectoryMessage, ListsAndPlacesHaveLimits) {
  EXPECT_FALSE(parse(written(Opened{.place = 64, .from = 0, .to = 1, .free = {}})));
  EXPECT_FALSE(parse(written(Keep{.pages = {}, .round = 1, .sources = std::vector<NodeId>(4, NodeId{1})})));
  EXPECT_FALSE(parse(written(Missing{.pages = {}, .source = NodeId{}})));
  Runs runs;
  for (std::uint32_t i = 0; i < kMostRuns; ++i) runs.push_back({.first = 2 * i, .count = 1});
  EXPECT_TRUE(parse(written(Landed{runs})));
  runs.push_back({.first = 2 * std::uint32_t(kMostRuns), .count = 1});
  EXPECT_FALSE(parse(written(Landed{runs})));
}

TEST(DirectoryMessage, AnErrorSaysWhatCame) {
  EXPECT_THAT(parse("VD\x01").error().message, HasSubstr("has another format"));
  EXPECT_THAT(parse(std::string("VD\x02\x63")).error().message, HasSubstr("unknown kind 99"));
  EXPECT_THAT(parse(written(Want{{.first = 4, .count = 0}})).error().message, HasSubstr("is damaged ('want')"));
}

TEST(DirectoryMessage, PagesAreAppendedToRuns) {
  Runs runs;
  for (const std::uint32_t page : {1u, 2u, 3u, 7u, 8u}) append(runs, page);
  EXPECT_EQ(runs, (Runs{{.first = 1, .count = 3}, {.first = 7, .count = 2}}));
}

TEST(DirectoryMessage, RunsAreNamedForPeople) {
  EXPECT_EQ(words_of(Runs{{.first = 7, .count = 1}}), "page 7");
  EXPECT_EQ(words_of(Runs{{.first = 0, .count = 4}}), "pages 0 to 3");
  EXPECT_EQ(words_of(Runs{{.first = 0, .count = 4}, {.first = 7, .count = 1}, {.first = 9, .count = 2}}),
            "pages 0 to 3, 7, 9 to 10");
  Runs many;
  for (std::uint32_t i = 0; i < 20; ++i) many.push_back({.first = 2 * i, .count = 1});
  EXPECT_EQ(words_of(many), "pages 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 4 ranges more");
}

}  // namespace
}  // namespace vmem::cluster::directory
