// A MemoryService as its clients see it: loans, answers and refusals, over an in-process fabric.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;
using tiers::SlotId;

TEST(MemoryService, WhatIsLentIsLentOnceAndWipedBeforeTheNextHasIt) {
  SteppedRemote remote(1);
  remote.start_tier(100);
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  const ConstBytes memory = remote.lenders[0]->memory(SteppedRemote::kLenderBytes);
  const auto zero = [&] { return std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0}; }); };
  EXPECT_FALSE(zero());
  EXPECT_EQ(remote.tier->usage().budget_bytes, SteppedRemote::kLenderBytes);
  // Another node connects; the first has gone without a farewell.
  auto first = std::move(remote.tier);
  first.reset();
  remote.service_config = {};
  const auto lent = [&] { return remote.lenders[0]->service->statistics().lent.memory; };
  remote.pass(1'000'000);
  EXPECT_EQ(lent(), SteppedRemote::kLenderBytes) << "it may come back";
  remote.pass(70'000'000);
  EXPECT_EQ(lent(), 0u);
  EXPECT_TRUE(zero());
  remote.start_tier(101);
  EXPECT_EQ(lent(), SteppedRemote::kLenderBytes);
}

TEST(MemoryService, ANodeGetsNoMoreThanItsBudget) {
  SteppedRemote remote(1);
  remote.service_config.client_bytes = 3 * kPage;
  remote.start_lender(1);
  remote.start_tier();
  EXPECT_EQ(remote.tier->usage().budget_bytes, 3 * kPage);
  for (int i = 0; i < 3; ++i) remote.slot();
  EXPECT_EQ(remote.tier->allocate(kPage)->grant, tiers::Grant::full);
}

// A client that sends whatever the test says.
class BareClient final : public Receiver {
 public:
  BareClient(SteppedRemote& remote, NodeIdentity self) : remote_(remote), self_(self) {
    transport_ = remote.fabric.node(self, *this);
    memory_ = page_memory(kPage);
    slab_ = *transport_->register_slab({memory_.get(), kPage});
    peer_ = *transport_->connect(node_address(1), remote.clock.now_us() + 1'000'000);
    turn();
  }
  ~BareClient() override { slab_.reset(); }
  std::optional<Claim> claim(PeerId, ConstBytes, std::uint64_t bytes) override {
    return Claim{{memory_.get(), bytes}, 1, remote_.clock.now_us() + 1'000'000};
  }
  void turn() {
    for (int i = 0; i < 20; ++i) {
      remote_.clock.advance(10);
      transport_->progress();
      remote_.turn();
    }
    transport_->poll(events_);
  }
  void say(wire::Kind kind, std::uint64_t sequence, ConstBytes body, bool page = false,
           std::optional<NodeIdentity> as = {}) {
    post(kind, sequence, body, page, as);
    turn();
  }
  void post(wire::Kind kind, std::uint64_t sequence, ConstBytes body, bool page = false,
            std::optional<NodeIdentity> as = {}) {
    const NodeIdentity who = as.value_or(self_);
    const auto header = *wire::write(
        {.kind = kind,
         .request = {static_cast<std::uint64_t>(who.id), Epoch{static_cast<std::uint64_t>(who.incarnation)}, sequence},
         .payload_bytes = page ? kPage : 0},
        body);
    const ConstBytes pieces[] = {ConstBytes(memory_.get(), kPage)};
    Send send{.peer = peer_, .header = header, .deadline_us = remote_.clock.now_us() + 1'000'000};
    if (page) send.payload = pieces;
    ASSERT_TRUE(transport_->send({&send, 1}));
  }
  template <class Body>
  static std::optional<Body> read(ConstBytes body) {
    if constexpr (std::is_same_v<Body, wire::Lent>)
      return wire::read_lent(body);
    else
      return wire::read_body<Body>(body);
  }
  // The answers since the last call.
  template <class Body>
  std::vector<Body> heard() {
    std::vector<Body> bodies;
    for (const Event& event : events_) {
      const auto* message = std::get_if<Message>(&event.what);
      if (message == nullptr) continue;
      const auto parsed = wire::parse(message->header);
      if (const auto body = read<Body>(parsed->body)) bodies.push_back(*body);
    }
    events_.clear();
    return bodies;
  }
  bool gone() {
    return std::ranges::any_of(events_, [](const Event& event) { return std::holds_alternative<Gone>(event.what); });
  }
  std::uint64_t lease() {
    say(wire::Kind::allocate, ++asked_, wire::encode(wire::Ask{{.memory = kPage * 8}}));
    const auto lent = heard<wire::Lent>();
    return lent.empty() || lent.front().answer != wire::Answer::done ? 0 : lent.front().lease;
  }
  wire::PageAt page(std::uint64_t lease, std::uint64_t version, unsigned char value) {
    std::memset(memory_.get(), value, kPage);
    wire::PageAt at{lease, 0, {.serial = pagetable::Serial{7}, .version = version, .bytes = kPage, .granule = 1}};
    const auto sum = tiers::seal({memory_.get(), kPage}, at.page.identity());
    at.page.low = sum.low;
    at.page.high = sum.high;
    return at;
  }
  std::byte first() const { return *memory_; }

 private:
  SteppedRemote& remote_;
  const NodeIdentity self_;
  PageMemory memory_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Slab> slab_;
  PeerId peer_{};
  std::vector<Event> events_;
  std::uint64_t asked_ = 0;
};

using wire::Answer;
using wire::Kind;

TEST(MemoryService, ARequestThatComesAgainIsAnsweredAsBeforeAndALateOneIsNotCarriedOut) {
  SteppedRemote remote(1);
  BareClient client(remote, {NodeId{7}, Incarnation{5}});
  const std::uint64_t lease = client.lease();
  const auto old = client.page(lease, 1, 1);
  client.say(Kind::put, 10, wire::body_of(old), true);
  const auto page = client.page(lease, 2, 2);
  client.say(Kind::put, 12, wire::body_of(page), true);
  for (const auto& reply : client.heard<wire::Reply>()) EXPECT_EQ(reply.answer, Answer::done);
  client.say(Kind::put, 12, wire::body_of(page), true);
  ASSERT_EQ(client.heard<wire::Reply>().size(), 1u) << "the same answer";
  EXPECT_EQ(remote.lenders[0]->service->statistics().stored_bytes, 2 * kPage) << "and nothing done for it";
  (void)client.page(lease, 1, 1);
  client.say(Kind::put, 11, wire::body_of(old), true);
  const auto late = client.heard<wire::Reply>();
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late.front().answer, Answer::refused) << "what lies there is newer";
  client.say(Kind::release, 9, wire::body_of(page));
  client.say(Kind::fetch, 20, wire::body_of(page));
  client.turn();
  EXPECT_EQ(client.first(), std::byte{2}) << "the newer page is there";
}

TEST(MemoryService, APageThatIsReleasedWhileItArrivesIsNotKept) {
  SteppedRemote remote(1);
  BareClient client(remote, {NodeId{7}, Incarnation{5}});
  const auto page = client.page(client.lease(), 1, 1);
  client.post(Kind::put, 10, wire::body_of(page), true);
  client.post(Kind::release, 11, wire::body_of(page));
  client.turn();
  const auto replies = client.heard<wire::Reply>();
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies.front().answer, Answer::done);
  const ServiceStatistics now = remote.lenders[0]->service->statistics();
  EXPECT_EQ(now.stored_bytes, kPage);
  EXPECT_EQ(now.pages, 0u);
  EXPECT_EQ(now.held.memory, 0u);
  client.say(Kind::fetch, 12, wire::body_of(page));
  const auto fetched = client.heard<wire::Reply>();
  ASSERT_EQ(fetched.size(), 1u);
  EXPECT_EQ(fetched.front().answer, Answer::unknown);
}

TEST(MemoryService, AnEarlierIncarnationIsTurnedAwayAndALaterOneFindsNothing) {
  SteppedRemote remote(1);
  auto client = std::make_unique<BareClient>(remote, NodeIdentity{NodeId{7}, Incarnation{5}});
  const std::uint64_t lease = client->lease();
  const auto page = client->page(lease, 1, 1);
  client->say(Kind::put, 10, wire::body_of(page), true);
  {
    BareClient earlier(remote, {NodeId{7}, Incarnation{4}});
    EXPECT_TRUE(earlier.gone());
  }
  client.reset();
  BareClient later(remote, {NodeId{7}, Incarnation{6}});
  EXPECT_EQ(later.lease(), 0u) << "its memory is being wiped";
  const std::uint64_t new_lease = later.lease();
  EXPECT_NE(new_lease, 0u);
  EXPECT_NE(new_lease, lease);
  later.heard<wire::Reply>();
  later.say(Kind::fetch, 11, wire::body_of(page));
  EXPECT_TRUE(later.heard<wire::Reply>().empty()) << "that lease is over";
  auto same = page;
  same.lease = new_lease;
  later.say(Kind::fetch, 12, wire::body_of(same));
  const auto answers = later.heard<wire::Reply>();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers.front().answer, Answer::unknown);
}

TEST(MemoryService, WhatIsNotThisConnectionsIsRejected) {
  SteppedRemote remote(1);
  BareClient client(remote, {NodeId{7}, Incarnation{5}});
  const std::uint64_t lease = client.lease();
  const auto page = client.page(lease, 1, 1);
  const auto rejected = [&] { return remote.lenders[0]->service->statistics().rejected; };
  client.say(Kind::put, 10, wire::body_of(page), true, NodeIdentity{NodeId{8}, Incarnation{5}});
  EXPECT_EQ(rejected(), 1u) << "somebody else's";
  client.say(Kind::put, 11, wire::body_of(page), true, NodeIdentity{NodeId{7}, Incarnation{4}});
  EXPECT_EQ(rejected(), 2u) << "of an earlier incarnation";
  auto elsewhere = page;
  elsewhere.lease ^= 1;
  client.say(Kind::put, 12, wire::body_of(elsewhere), true);
  EXPECT_EQ(rejected(), 3u) << "of another lease";
  EXPECT_TRUE(client.heard<wire::Reply>().empty());
  auto outside = page;
  outside.offset = 8 * kPage;
  client.say(Kind::put, 13, wire::body_of(outside), true);
  auto other = page;
  other.page.version = 2;  // the seal is that of another version
  client.say(Kind::put, 14, wire::body_of(other), true);
  const auto replies = client.heard<wire::Reply>();
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].answer, Answer::refused) << "outside of the lease";
  EXPECT_EQ(replies[1].answer, Answer::damaged);
  EXPECT_EQ(remote.lenders[0]->service->statistics().pages, 0u);
}

}  // namespace
}  // namespace vmem::rdma
