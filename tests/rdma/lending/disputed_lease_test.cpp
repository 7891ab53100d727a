// Leases that their borrower loses: lapsed, ended, taken again, or contradicted by the lender.
#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using tiers::Grant;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kPage = 2 * kMiB, kLendable = 64 * kMiB, kLease = 70;

// The test answers as the lenders, by index.
class DisputedLease : public ::testing::Test {
 protected:
  explicit DisputedLease(std::size_t count = 1) : lenders(count) {}
  void SetUp() override {
    RemoteTier::Config config;
    for (std::size_t i = 0; i < lenders.size() && !follows; ++i) config.peers.push_back(address(i));
    config.replicas = static_cast<std::uint32_t>(lenders.size());
    config.own_workers = false;
    config.by_need = true;
    tier = *RemoteTier::create(std::move(config), *node);
    if (follows) follow({});
    turn();
    for (std::size_t i = 0; i < lenders.size(); ++i) {
      reach(i);
      lends(kLease, {}, i);
    }
  }
  // The tier ends once its connections have.
  void TearDown() override {
    transport.on_progress = [this] {
      for (PeerId& each : lenders)
        if (each != PeerId{}) transport.gone(std::exchange(each, PeerId{}));
    };
    tier.reset();
  }
  // Follows the first lender, which drains or does not.
  void follow(NamedLender lender) {
    lender.name = 1;
    lender.addresses = {address(0)};
    tier->follow({lender});
    turn();
  }
  static std::string address(std::size_t i) { return "lender" + std::to_string(i); }
  void turn() {
    for (int i = 0; i < 20; ++i) node->step();
  }
  void pass(std::uint64_t us) {
    clock.advance(us);
    turn();
  }
  // The last connection to it that was begun is there.
  void reach(std::size_t i = 0) {
    for (const auto& [to, peer] : transport.connects)
      if (to == address(i)) lenders[i] = peer;
    transport.push(lenders[i], Connected{.node = {NodeId{9 + i}, Incarnation{1}}, .by_us = true});
    turn();
  }
  void reconnect(std::size_t i = 0) {
    transport.gone(std::exchange(lenders[i], PeerId{}));
    turn();
    pass(300'000);
    reach(i);
  }
  // The last message of the kind over the connection that there is.
  std::optional<wire::Parsed> last(wire::Kind kind, std::size_t i = 0) const {
    const auto* const found = sent(kind, i);
    return found == nullptr ? std::nullopt : std::optional(*wire::parse(found->header));
  }
  const ScriptedTransport::Leaving* sent(wire::Kind kind, std::size_t i = 0) const {
    const ScriptedTransport::Leaving* found = nullptr;
    for (const auto& each : transport.sent) {
      const auto parsed = wire::parse(each.header);
      if (parsed && each.peer == lenders[i] && parsed->header.kind == kind) found = &each;
    }
    return found;
  }
  // The last put was sent, and its answer comes.
  void put_is_done(std::size_t i = 0) {
    const auto* const put = sent(wire::Kind::put, i);
    ASSERT_NE(put, nullptr) << "nothing was put";
    transport.push(lenders[i], Sent{put->id});
    const auto asked = *wire::parse(put->header);
    const auto at = *wire::read_body<wire::PageAt>(asked.body);
    const wire::Reply done{.lease = at.lease, .offset = at.offset};
    transport.says(lenders[i], asked.header.request, wire::Kind::put_done, wire::body_of(done));
    turn();
  }
  // The page that was fetched last comes.
  void page_comes(ConstBytes page, std::size_t i) {
    const auto asked = last(wire::Kind::fetch, i);
    ASSERT_TRUE(asked) << "nothing was fetched";
    const auto at = *wire::read_body<wire::PageAt>(asked->body);
    const wire::Reply done{.lease = at.lease, .offset = at.offset};
    auto header =
        *wire::write({.kind = wire::Kind::fetched, .request = asked->header.request, .payload_bytes = page.size()},
                     wire::body_of(done));
    const auto claim = node->claim(lenders[i], header, page.size());
    ASSERT_TRUE(claim) << "it is not awaited";
    std::ranges::copy(page, claim->destination.begin());
    transport.push(lenders[i], Message{std::move(header), claim->destination, claim->token});
    turn();
  }
  wire::Ask last_ask() const { return *wire::read_ask(last(wire::Kind::allocate)->body); }
  // Answers the last ask.
  void answers(const wire::Lent& lent, std::size_t i = 0) {
    const auto asked = last(wire::Kind::allocate, i);
    ASSERT_TRUE(asked) << "it has not asked";
    transport.says(lenders[i], asked->header.request, wire::Kind::allocated, wire::encode(lent));
    turn();
  }
  // The lease has this memory.
  void lends(std::uint64_t lease, std::vector<Extent> memory, std::size_t i = 0) {
    wire::Lent lent{.lease = lease, .memory = std::move(memory), .nodes = 1, .lendable_bytes = kLendable};
    for (const Extent& each : lent.memory) lent.bytes.memory += each.bytes;
    lent.room.memory = kLendable - lent.bytes.memory;
    answers(lent, i);
  }
  void needs(std::uint64_t bytes) {
    tier->need(bytes);
    pass(1);
  }
  tiers::SlotId slot() {
    const auto grant = *tier->allocate(kPage);
    EXPECT_EQ(grant.grant, Grant::granted);
    return grant.slot;
  }
  int pages_until_full() {
    int pages = 0;
    while (tier->allocate(kPage)->grant == Grant::granted) ++pages;
    return pages;
  }
  void store(tiers::SlotId slot, std::vector<std::byte>& page) {
    tiers::Transfer store;
    store.version = 1;
    store.slot = slot;
    store.host = page.data();
    store.bytes = page.size();
    store.direction = tiers::Direction::store;
    ASSERT_TRUE(tier->submit({&store, 1}));
    turn();
  }
  std::vector<tiers::Completion> completed() {
    std::vector<tiers::Completion> completions;
    EXPECT_TRUE(tier->poll(completions));
    return completions;
  }

  ManualClock clock;
  RegisteringTransport* made = nullptr;
  const std::unique_ptr<Node> node = scripted_node(clock, made);
  RegisteringTransport& transport = *made;
  std::vector<PeerId> lenders;
  bool follows = false;
  std::unique_ptr<RemoteTier> tier;
};

TEST_F(DisputedLease, AnAskNamesTheLease) {
  needs(4 * kMiB);
  EXPECT_EQ(last_ask().lease, kLease);
  EXPECT_GE(last_ask().bytes.memory, 4 * kMiB);
}

// Places of copies that were lost are no places in its room of later.
TEST_F(DisputedLease, ALeaseThatWasLostAndIsTakenAgainBeginsWithAllOfItsRoom) {
  needs(4 * kMiB);
  lends(kLease, {{0, 8 * kMiB}});
  const tiers::SlotId held = slot();
  needs(12 * kMiB);
  lends(kLease, {{4 * kMiB, 16 * kMiB}});
  EXPECT_THAT(transport.closed, ::testing::Contains(lenders[0])) << "memory that was not returned is gone";
  EXPECT_EQ(tier->usage().budget_bytes, 0u);
  reconnect();
  EXPECT_EQ(last_ask().lease, 0u);
  lends(kLease, {{0, 16 * kMiB}});
  EXPECT_TRUE(tier->degraded(held)) << "its copy is lost";
  tier->release(held);
  turn();
  EXPECT_FALSE(last(wire::Kind::release)) << "what is there may be another page's";
  EXPECT_EQ(pages_until_full(), 8);
}

TEST_F(DisputedLease, APutThatIsAnsweredAfterItsRoomWasLostHasStoredNothing) {
  needs(4 * kMiB);
  lends(kLease, {{0, 8 * kMiB}});
  std::vector<std::byte> page(kPage);
  store(slot(), page);
  needs(12 * kMiB);
  lends(kLease, {{4 * kMiB, 16 * kMiB}});
  put_is_done();
  pass(1'000'000);
  const auto ended = completed();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].outcome, tiers::Outcome::failed);
  EXPECT_THAT(ended[0].error.message, ::testing::HasSubstr("no node has room"));
}

TEST_F(DisputedLease, ALenderThatNamesAnotherLeaseIsConnectedAnewAndUsed) {
  needs(4 * kMiB);
  lends(kLease, {{0, 4 * kMiB}});
  const tiers::SlotId held = slot();
  needs(8 * kMiB);
  lends(kLease + 1, {{0, 8 * kMiB}});
  EXPECT_THAT(transport.closed, ::testing::Contains(lenders[0]));
  reconnect();
  lends(kLease + 1, {{0, 10 * kMiB}});
  EXPECT_TRUE(tier->degraded(held));
  tier->release(held);
  EXPECT_EQ(pages_until_full(), 5);
}

TEST_F(DisputedLease, OneThatLapsedIsLostAlsoIfNoOtherIsGranted) {
  needs(4 * kMiB);
  lends(kLease, {{0, 4 * kMiB}});
  const tiers::SlotId held = slot();
  reconnect();
  EXPECT_EQ(last_ask().lease, kLease);
  EXPECT_FALSE(tier->degraded(held)) << "it may be there";
  answers({.answer = wire::Answer::unknown});
  EXPECT_TRUE(tier->degraded(held));
  EXPECT_EQ(last_ask().lease, 0u) << "it asks for another one";
  answers({.answer = wire::Answer::full});
  EXPECT_EQ(tier->usage().budget_bytes, 0u);
}

class ReturnedLease : public DisputedLease {
 protected:
  ReturnedLease() { follows = true; }
};

// Not if the lender drains no more meanwhile, either.
TEST_F(ReturnedLease, GetsNoPagesWhileItsReturnIsOnItsWay) {
  needs(4 * kMiB);
  lends(kLease, {{0, 8 * kMiB}});
  needs(12 * kMiB);
  follow({.drains = true});
  const auto returned = last(wire::Kind::release);
  ASSERT_TRUE(returned) << "nothing of this tier is there";
  lends(kLease, {{0, 16 * kMiB}});
  follow({.drains = false});
  EXPECT_EQ(tier->usage().budget_bytes, 0u);
  const std::size_t before = transport.sent.size();
  needs(20 * kMiB);
  EXPECT_EQ(transport.sent.size(), before) << "no more is asked for";
  EXPECT_NE(tier->allocate(kPage).value_or(tiers::SlotGrant{}).grant, Grant::granted);
  transport.says(lenders[0], returned->header.request, wire::Kind::released, {});
  turn();
  transport.gone(lenders[0]);
  turn();
  reach();
  EXPECT_EQ(last_ask().lease, 0u);
  lends(kLease + 1, {{0, 8 * kMiB}});
  EXPECT_EQ(pages_until_full(), 4) << "it is used again";
}

class DisputedLeases : public DisputedLease {
 protected:
  DisputedLeases() : DisputedLease(2) {}
};

// Another page may be at that place by then.
TEST_F(DisputedLeases, ARepairEndsIfTheRoomItWasToGoToWasLostMeanwhile) {
  needs(4 * kMiB);
  for (const std::size_t i : {0u, 1u}) lends(kLease, {{0, 8 * kMiB}}, i);
  std::vector<std::byte> page(kPage, std::byte{7});
  const tiers::SlotId held = slot();
  store(held, page);
  for (const std::size_t i : {0u, 1u}) put_is_done(i);
  ASSERT_EQ(completed().size(), 1u);
  reconnect(0);
  lends(kLease + 1, {{0, 8 * kMiB}}, 0);
  pass(1'000'000);
  ASSERT_TRUE(last(wire::Kind::fetch, 1)) << "the lost copy is made again";
  reconnect(0);
  lends(kLease + 2, {{0, 8 * kMiB}}, 0);
  reconnect(0);
  lends(kLease + 1, {{0, 8 * kMiB}}, 0);
  page_comes(page, 1);
  EXPECT_FALSE(last(wire::Kind::put, 0));
  EXPECT_TRUE(tier->degraded(held));
  pass(1'000'000);
  page_comes(page, 1);
  put_is_done(0);
  EXPECT_FALSE(tier->degraded(held)) << "it is made anew";
}

}  // namespace
}  // namespace vmem::rdma
