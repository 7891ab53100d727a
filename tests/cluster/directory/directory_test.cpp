// What the directory of one node answers when the registry, its home or its membership is missing.
#include "cluster/directory/directory.hpp"

#include <gmock/gmock.h>

#include "cluster/enrollment/node_record.hpp"
#include "cluster/registry/memory_registry.hpp"

namespace vmem::cluster::directory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kWaitUs = 5'000'000;

// Answers as long as it is there.
class AwayRegistry final : public Registry {
 public:
  explicit AwayRegistry(RegistryState& state) : registry_(state) {}
  RequestId post(RegistryRequest request) override { return registry_.post(std::move(request)); }
  void poll(std::vector<Reply>& replies) override {
    if (there) registry_.poll(replies);
  }
  bool there = true;

 private:
  MemoryRegistry registry_;
};

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() {
    enroll();
    settle();
  }
  void enroll() {
    MemoryRegistry writer(state);
    writer.post(Commit{.conditions = {}, .edits = {{.key = node_key(NodeId{1}), .value = "a node", .lease = {}}}});
    std::vector<Reply> replies;
    writer.poll(replies);
    directory.enrolled(NodeId{1}, replies.back().revision);
    directory.see({.as_of = replies.back().revision, .nodes = {{.id = NodeId{1}}, {.id = NodeId{2}}}});
  }
  void settle() {
    for (int steps = 0; directory.step() && steps < 1000; ++steps) {
    }
  }
  void pass(std::uint64_t us) {
    for (const std::uint64_t end = clock.now_us() + us; clock.now_us() < end; clock.advance(100'000)) settle();
    settle();
  }
  template <class Event>
  std::optional<Event> ended(Ticket ticket) {
    std::vector<DirectoryEvent> events;
    directory.poll(events);
    for (const DirectoryEvent& each : events)
      if (const auto* found = std::get_if<Event>(&each); found != nullptr && found->ticket == ticket) return *found;
    return std::nullopt;
  }
  Error open_error(Ticket ticket) {
    const auto event = ended<OpenEnded>(ticket);
    EXPECT_TRUE(event && !event->serial);
    return event && !event->serial ? event->serial.error() : Error{};
  }
  Error remove_error(Ticket ticket) {
    const auto event = ended<RemoveEnded>(ticket);
    EXPECT_TRUE(event && !event->status);
    return event && !event->status ? event->status.error() : Error{};
  }
  // A region of 8 pages, 4 of which are written.
  Serial publish() {
    const Ticket ticket = directory.publish({.serial = Serial{7},
                                             .name = "table",
                                             .key = {},
                                             .first_granule = 1,
                                             .granules = 8,
                                             .page_bytes = 1,
                                             .bytes = 8,
                                             .written = {{.first = 0, .count = 4}}},
                                            kWaitUs);
    pass(2'000'000);
    const auto event = ended<PublishEnded>(ticket);
    EXPECT_TRUE(event && event->serial);
    return Serial{7};
  }
  // A region whose home is another node.
  void others_publish() {
    RegionRecord record;
    record.serial = Serial{9};
    record.name = "others";
    record.version = 1;
    record.granules = record.pages = 8;
    record.page_bytes = 1;
    record.bytes = 8;
    record.tenant = "t";
    record.publisher = record.home = NodeId{2};
    const NameRecord name{.serial = Serial{9}, .version = 1, .tenant = "t", .publisher = NodeId{2}};
    MemoryRegistry writer(state);
    writer.post(Commit{.conditions = {},
                       .edits = {{.key = region_key(Serial{9}), .value = json_of(record), .lease = {}},
                                 {.key = name_key("others"), .value = json_of(name), .lease = {}}}});
    pass(2'000'000);
  }

  ManualClock clock;
  RegistryState state{clock};
  AwayRegistry registry{state};
  std::optional<NoPath> no_path;
  Directory directory{registry,
                      clock,
                      {.config = {},
                       .random = [] { return std::uint64_t{1}; },
                       .tenant = "t",
                       .fenced = [] { return false; },
                       .unix_s = [] { return std::uint64_t{1}; },
                       .no_path = [this](NodeId) { return no_path; }}};
};

TEST_F(DirectoryTest, ANameThatCannotExistIsRefusedAtOnce) {
  for (const char* const name : {"", "no such!", "-a"}) {
    const Ticket opens = directory.open(name, kWaitUs);
    EXPECT_EQ(open_error(opens).status, VMEM_ERROR_INVALID_VALUE) << name;
    const Ticket removes = directory.remove(name, kWaitUs);
    EXPECT_THAT(remove_error(removes).message, HasSubstr("begins with a letter or a digit")) << name;
  }
}

TEST_F(DirectoryTest, WhoIsNoMemberOpensAndRemovesNothing) {
  directory.expelled();
  EXPECT_EQ(open_error(directory.open("table", kWaitUs)).status, VMEM_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(remove_error(directory.remove("table", kWaitUs)).status, VMEM_ERROR_NOT_INITIALIZED);
}

TEST_F(DirectoryTest, ANameThatNobodyHasPublishedIsSaidOnlyWhereTheRegistryAnswers) {
  Ticket opens = directory.open("none", kWaitUs);
  pass(kWaitUs);
  EXPECT_THAT(open_error(opens).message, HasSubstr("nobody has published that name"));
  registry.there = false;
  opens = directory.open("none", kWaitUs);
  const Ticket removes = directory.remove("none", kWaitUs);
  pass(kWaitUs);
  std::vector<DirectoryEvent> events;
  directory.poll(events);
  ASSERT_EQ(events.size(), 2u);
  const Error open = std::get<OpenEnded>(events[0]).serial.error();
  const Error remove = std::get<RemoveEnded>(events[1]).status.error();
  EXPECT_EQ(std::get<OpenEnded>(events[0]).ticket, opens);
  EXPECT_EQ(std::get<RemoveEnded>(events[1]).ticket, removes);
  for (const Error& each : {open, remove}) {
    EXPECT_EQ(each.status, VMEM_ERROR_TIMEOUT);
    EXPECT_THAT(each.message, AllOf(HasSubstr("the registry did not answer"), Not(HasSubstr("nobody has published"))));
  }
}

TEST_F(DirectoryTest, AKnownRegionIsNotItsHomesFaultWhereTheRegistryIsAway) {
  others_publish();
  registry.there = false;
  clock.advance(1);  // the last reading is from before
  const Ticket opens = directory.open("others", kWaitUs);
  pass(kWaitUs);
  EXPECT_THAT(open_error(opens).message, AllOf(HasSubstr("the registry did not answer"), Not(HasSubstr("its home"))));
}

TEST_F(DirectoryTest, ARemovalThatItsHomeRefusesToHearEndsAtOnce) {
  others_publish();
  const Ticket removes = directory.remove("others", kWaitUs);
  pass(500'000);
  EXPECT_FALSE(ended<RemoveEnded>(removes));
  no_path = NoPath{.why = "no such secret", .refused = true, .at_us = clock.now_us()};
  pass(500'000);
  const Error why = remove_error(removes);
  EXPECT_EQ(why.status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(why.message, HasSubstr("its home, node 2 (term 1), refuses the connection: no such secret"));
}

// The first opening still tells its home that it is closed, which never hears it.
TEST_F(DirectoryTest, AnOpeningThatIsRepeatedAfterARefusalIsRefusedToo) {
  others_publish();
  no_path = NoPath{.why = "no such secret", .refused = true, .at_us = UINT64_MAX};
  for (int turn = 0; turn < 2; ++turn) {
    const Ticket opens = directory.open("others", kWaitUs);
    pass(1'500'000);
    EXPECT_THAT(open_error(opens).message, HasSubstr("refuses the connection: no such secret")) << turn;
  }
}

TEST_F(DirectoryTest, WhatWasPublishedBeforeTheMembershipEndedIsClosedWithALoss) {
  const Serial serial = publish();
  directory.expelled();
  const Ticket ticket = directory.close(serial, kWaitUs);
  const auto closed = ended<CloseEnded>(ticket);
  ASSERT_TRUE(closed && !closed->status);
  EXPECT_EQ(closed->status.error().status, VMEM_ERROR_LOST);
  EXPECT_THAT(closed->status.error().message, HasSubstr("pages 0 to 3"));
  const Ticket again = directory.close(serial, kWaitUs);
  const auto twice = ended<CloseEnded>(again);
  ASSERT_TRUE(twice && !twice->status);
  EXPECT_EQ(twice->status.error().status, VMEM_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmem::cluster::directory
