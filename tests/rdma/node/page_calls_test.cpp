// Which requests go, and which wait, over a transport that the test answers.
#include "rdma/node/page_calls.hpp"

#include <gmock/gmock.h>

#include <array>

#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Kind;
using wire::Order;

constexpr PeerId kNear{5}, kFar{6};
constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kRequestUs = 2'000'000;

class PageCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto admit = [](const Connected&) { return Status{}; };
    (void)book.connected(kFar, {.node = {NodeId{7}, Incarnation{1}}, .path = ""}, admit);
    (void)book.connected(kNear, {.node = {NodeId{8}, Incarnation{1}}, .path = ""}, admit);
  }
  // `name` comes back in ended, with whether it was answered.
  PageCallId fetch(PeerId from, int name, Order order = Order::foreground, std::uint64_t give_up_us = 1'000'000'000) {
    const PageCall page{.call = {.peer = from,
                                 .kind = Kind::fetch,
                                 .body = std::as_bytes(std::span(&name, 1)),
                                 .destination = memory,
                                 .reply_bytes = 4,
                                 .order = order},
                        .request_us = kRequestUs,
                        .give_up_us = give_up_us};
    return page_calls.begin(page, [this, name](const CallEnd& end) { ended.emplace_back(name, end.landed); });
  }
  // The oldest fetch from the peer that is not answered lands, after so long: by default so long
  // that the window holds one page and one that waits.
  void land(PeerId from, std::uint64_t after_us = 5000) {
    clock.advance(after_us);
    const auto next = std::ranges::find_if(transport.sent, [&](const auto& each) { return each.peer == from; });
    ASSERT_NE(next, transport.sent.end());
    const auto request = wire::parse(next->header)->header.request;
    const auto reply =
        *wire::write({.kind = Kind::fetched, .request = request, .payload_bytes = kPage}, std::array<std::byte, 4>{});
    transport.sent.erase(next);
    const auto claim = calls.claim(from, *wire::parse(reply), kPage);
    ASSERT_TRUE(claim);
    calls.landed(claim->token);
    step();
  }
  void step() {
    calls.run_ended();
    page_calls.step();
    calls.run_ended();
  }
  // What is in flight to the peer, in the order in which it was sent.
  std::vector<int> in_flight(PeerId peer) const {
    std::vector<int> names;
    for (const auto& each : transport.sent) {
      if (each.peer != peer) continue;
      int name = 0;
      std::memcpy(&name, wire::parse(each.header)->body.data(), sizeof(name));
      names.push_back(name);
    }
    return names;
  }
  std::vector<int> names_ended() const {
    std::vector<int> names;
    for (const auto& each : ended) names.push_back(each.first);
    return names;
  }

  ManualClock clock;
  ScriptedTransport transport;
  PeerBook book{transport, clock, 1000};
  Calls calls{transport, book, clock, kScriptedSelf};
  PageCalls page_calls{calls, clock};
  std::array<std::byte, kPage> memory{};
  std::vector<std::pair<int, bool>> ended;
};

TEST_F(PageCallsTest, ANodeThatDoesNotAnswerHoldsUpOnlyItsOwn) {
  for (int i = 0; i < 10; ++i) fetch(kFar, 100 + i);
  for (int i = 0; i < 10; ++i) fetch(kNear, i);
  EXPECT_THAT(in_flight(kFar), ElementsAre(100)) << "nothing is known of its path";
  for (int i = 0; i < 10; ++i) land(kNear);
  EXPECT_THAT(names_ended(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(in_flight(kFar), ElementsAre(100));
  land(kFar);
  EXPECT_THAT(in_flight(kFar), ElementsAre(101, 102)) << "one is sent while the other one arrives";
}

TEST_F(PageCallsTest, WhatSomebodyWaitsForPassesTheRest) {
  fetch(kNear, 1);
  fetch(kNear, 30, Order::background);
  fetch(kNear, 20, Order::ahead);
  fetch(kNear, 10, Order::foreground);
  land(kNear);
  EXPECT_THAT(in_flight(kNear), ElementsAre(10, 20));
  EXPECT_EQ(transport.header(0).order, Order::foreground);
  EXPECT_EQ(transport.header(1).order, Order::ahead) << "the lender is told";
  land(kNear);
  EXPECT_THAT(in_flight(kNear), ElementsAre(20, 30));
}

TEST_F(PageCallsTest, ACallThatIsHurriedPassesTheOthers) {
  fetch(kNear, 1);
  fetch(kNear, 20, Order::ahead);
  const PageCallId last = fetch(kNear, 21, Order::ahead);
  page_calls.hurry(last);
  page_calls.hurry(PageCallId{99});
  land(kNear);
  EXPECT_THAT(in_flight(kNear), ElementsAre(21, 20));
  EXPECT_EQ(transport.header(0).order, Order::foreground);
}

TEST_F(PageCallsTest, NobodyIsPassedForEver) {
  fetch(kNear, 0);
  fetch(kNear, 100, Order::background);
  for (int i = 1; i < 20; ++i) fetch(kNear, i);
  for (int i = 0; i < 9; ++i) land(kNear);
  EXPECT_THAT(names_ended(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(in_flight(kNear), ElementsAre(100, 9)) << "eight have passed it";
}

TEST_F(PageCallsTest, ADeadlineBeginsWhenTheCallIsSent) {
  fetch(kNear, 1);
  fetch(kNear, 2);
  land(kNear, kRequestUs - 1);
  clock.advance(kRequestUs - 1);
  std::size_t late = 0;
  calls.for_late([&](PeerId) { ++late; });
  EXPECT_EQ(late, 0u) << "the second one has waited here all the time";
  clock.advance(1);
  calls.for_late([&](PeerId) { ++late; });
  EXPECT_EQ(late, 1u);
}

TEST_F(PageCallsTest, ACallThatWaitsTooLongEndsWithoutAnAnswer) {
  const Service* const owner = nullptr;
  fetch(kNear, 1);
  const std::uint64_t began_us = clock.now_us();
  fetch(kNear, 2, Order::foreground, began_us + 5000);
  fetch(kNear, 3, Order::foreground, began_us + 9000);
  clock.advance(4999);
  step();
  EXPECT_THAT(ended, IsEmpty());
  clock.advance(1);
  step();
  EXPECT_THAT(ended, ElementsAre(std::pair(2, false)));
  page_calls.give_up(owner, began_us + 6000);
  clock.advance(1000);
  step();
  EXPECT_THAT(names_ended(), ElementsAre(2, 3));
  EXPECT_THAT(in_flight(kNear), ElementsAre(1)) << "it was sent, and has its own deadline";
}

TEST_F(PageCallsTest, ABrokenConnectionEndsWhatWaitsForIt) {
  fetch(kNear, 1);
  fetch(kNear, 2);
  fetch(kFar, 3);
  calls.break_all(kNear);
  page_calls.break_all(kNear);
  step();
  EXPECT_THAT(ended, ElementsAre(std::pair(1, false), std::pair(2, false)));
  EXPECT_FALSE(page_calls.any_of(nullptr)) << "nothing waits";
  EXPECT_EQ(page_calls.bytes_from(kFar), kPage);
}

TEST_F(PageCallsTest, ACallThatCannotBeSentEndsInTheNextStep) {
  transport.next_send = fail(VMEM_ERROR_OUT_OF_MEMORY, "too many");
  fetch(kNear, 1);
  EXPECT_THAT(ended, IsEmpty());
  EXPECT_TRUE(page_calls.any_of(nullptr));
  transport.next_send = {};
  step();
  EXPECT_THAT(ended, ElementsAre(std::pair(1, false)));
  EXPECT_EQ(page_calls.bytes_from(kNear), 0u);
}

}  // namespace
}  // namespace vmem::rdma
