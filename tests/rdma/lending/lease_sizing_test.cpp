// Leases that follow what their borrowers need: tiers and lenders on a fabric, in virtual time.
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "rdma/lending/remote_fixture.hpp"
#include "rdma/lending/scripted_disk.hpp"

namespace vmem::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kLender = SteppedRemote::kLenderBytes;  // what each lends: 8 pages

// Another borrower of the same lenders.
class Second {
 public:
  // Of all lenders, or of one (from 1).
  explicit Second(SteppedRemote& remote, std::size_t only = 0) : remote_(remote) {
    RemoteTier::Config config;
    for (std::size_t i = 1; i <= remote.lenders.size(); ++i)
      if (only == 0 || only == i) config.peers.push_back(node_address(i));
    NodeSetup setup{.self = {NodeId{200}, Incarnation{1}},
                    .make_transport = {},
                    .clock = &remote.clock,
                    .times = {},
                    .own_thread = false};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      return remote.fabric.node(setup.self, receiver, remote.clock);
    };
    node_ = *Node::create(setup);
    config.own_workers = false;
    config.by_need = true;
    tier = *RemoteTier::create(std::move(config), *node_);
    until([&] { return !tier->obtainable_places().empty() || remote.lenders[0]->service->statistics().clients == 2; });
  }
  // The ticket's answer.
  bool grows_to(std::uint64_t bytes) {
    const std::uint64_t ticket = tier->need(bytes);
    until([&] { return tier->was_answered(ticket); });
    return tier->usage().budget_bytes >= bytes;
  }
  template <class Done>
  void until(Done done) {
    remote_.until([&] {
      node_->turn();
      return done();
    });
  }
  void pass(std::uint64_t us) {
    const std::uint64_t end = remote_.clock.now_us() + us;
    until([&] { return remote_.clock.now_us() >= end; });
  }

 private:
  SteppedRemote& remote_;
  std::unique_ptr<Node> node_;

 public:
  std::unique_ptr<RemoteTier> tier;
};

class LeaseSizing : public ::testing::Test {
 protected:
  void start(std::size_t count, std::uint32_t replicas = 1) {
    remote.emplace(count, replicas);
    remote->by_need = true;
    remote->start_tier();
  }
  bool grows_to(std::uint64_t bytes) {
    const std::uint64_t ticket = remote->tier->need(bytes);
    remote->until([&] { return remote->tier->was_answered(ticket); });
    return budget() >= bytes;
  }
  // Version 1 of so many pages.
  std::vector<tiers::SlotId> stored(std::uint64_t pages) {
    std::vector<tiers::SlotId> slots;
    for (std::uint64_t page = 0; page < pages; ++page) {
      slots.push_back(remote->slot());
      EXPECT_EQ(remote->store(slots[page], page, 1).outcome, tiers::Outcome::done);
    }
    return slots;
  }
  std::uint64_t budget() const { return remote->tier->usage().budget_bytes; }
  std::uint64_t lent(std::size_t lender) const { return remote->lenders[lender]->service->statistics().lent.memory; }

  std::optional<SteppedRemote> remote;
};

TEST_F(LeaseSizing, NothingIsLeasedBeforeItIsNeededAndAllCouldBeHad) {
  start(2);
  remote->pass(1'000'000);
  EXPECT_EQ(budget(), 0u);
  EXPECT_EQ(lent(0) + lent(1), 0u);
  EXPECT_EQ(remote->tier->allocate(kPage)->grant, tiers::Grant::full);
  EXPECT_THAT(remote->tier->obtainable_places(), ::testing::ElementsAre(kLender, kLender));
  EXPECT_THAT(remote->tier->describe(), HasSubstr("16 MiB"));
}

TEST_F(LeaseSizing, LeasesGrowToWhatIsNeededInEqualShares) {
  start(2);
  EXPECT_TRUE(grows_to(4 * kPage));
  EXPECT_EQ(lent(0), lent(1));
  EXPECT_LT(lent(0) + lent(1), 8 * kPage) << "others find room, too";
  EXPECT_TRUE(grows_to(16 * kPage));
  EXPECT_EQ(budget(), 2 * kLender);
  EXPECT_FALSE(grows_to(17 * kPage));
  EXPECT_THAT(remote->tier->shortage(), AllOf(HasSubstr("node:1"), HasSubstr("16 MiB of 16 MiB that it lends")));
}

TEST_F(LeaseSizing, TwoCopiesNeedTwiceAsMuchOnTwoNodes) {
  start(2, 2);
  EXPECT_TRUE(grows_to(4 * kPage));
  EXPECT_GE(lent(0), 4 * kPage);
  EXPECT_GE(lent(1), 4 * kPage);
  EXPECT_TRUE(grows_to(8 * kPage));
  EXPECT_FALSE(grows_to(9 * kPage));
}

TEST_F(LeaseSizing, WhatOneNeedsNoMoreAnotherGets) {
  start(1);
  Second second(*remote);
  EXPECT_TRUE(grows_to(6 * kPage));
  EXPECT_TRUE(second.grows_to(kPage));
  EXPECT_FALSE(second.grows_to(4 * kPage));
  EXPECT_THAT(second.tier->shortage(), HasSubstr("node 100"));
  (void)remote->tier->need(kPage);
  second.pass(3'000'000);
  EXPECT_TRUE(second.grows_to(5 * kPage));
  EXPECT_GE(budget(), kPage);
}

// Between two calls that need much a program may need little.
TEST_F(LeaseSizing, ALeaseOutlivesAShortDip) {
  start(1);
  ASSERT_TRUE(grows_to(6 * kPage));
  (void)remote->tier->need(0);
  remote->pass(500'000);
  EXPECT_GE(budget(), 6 * kPage);
  remote->pass(3'000'000);
  EXPECT_LE(budget(), kPage);
}

TEST_F(LeaseSizing, ALeaseKeepsThePagesThatItHas) {
  start(1);
  ASSERT_TRUE(grows_to(8 * kPage));
  const auto slots = stored(8);
  for (const std::size_t gone : {0u, 2u, 3u, 6u}) remote->tier->release(slots[gone]);
  (void)remote->tier->need(0);
  remote->pass(5'000'000);
  EXPECT_EQ(budget(), 4 * kPage);
  EXPECT_EQ(lent(0), 4 * kPage);
  for (const std::size_t there : {1u, 4u, 5u, 7u}) EXPECT_TRUE(remote->loads(slots[there], there, 1));
  Second second(*remote);
  EXPECT_TRUE(second.grows_to(4 * kPage)) << "what was returned";
}

TEST_F(LeaseSizing, WhoLosesALenderGetsItsRoomFromTheOthers) {
  start(3);
  remote->fabric.share_machine();
  ASSERT_TRUE(grows_to(9 * kPage));
  remote->lenders[1].reset();
  remote->until([&] { return lent(0) + lent(2) >= 9 * kPage; });
  EXPECT_EQ(budget(), lent(0) + lent(2));
}

TEST_F(LeaseSizing, WhatADrainingLenderHasIsNeededElsewhere) {
  start(0);
  std::vector<NamedLender> named;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    remote->lenders.emplace_back();
    remote->start_lender(id);
    named.push_back({.name = id, .addresses = {node_address(id)}});
  }
  remote->tier->follow(named);
  remote->until([&] { return remote->connected() == 3; });
  ASSERT_TRUE(grows_to(9 * kPage));
  const auto slots = stored(9);
  named[0].drains = true;
  remote->tier->follow(named);
  remote->until([&] { return lent(0) == 0; });
  for (std::uint64_t page = 0; page < 9; ++page) EXPECT_TRUE(remote->loads(slots[page], page, 1));
}

// The lender has what was returned, and its answer is lost with the connection; or it never heard
// of the return. The lender's next answer says which.
TEST_F(LeaseSizing, AReturnThatIsCutOffIsSettledByTheNextAnswer) {
  for (const bool heard : {true, false}) {
    SCOPED_TRACE(heard);
    start(1);
    ASSERT_TRUE(grows_to(8 * kPage));
    (void)remote->tier->need(2 * kPage);
    remote->until([&] { return budget() < 8 * kPage; });
    remote->cut.begin(NodeId{SteppedRemote::kTier}, NodeId{1}, heard ? Way::in : Way::both, 5'000'000);
    remote->pass(12'000'000);
    EXPECT_EQ(budget(), lent(0));
    EXPECT_LE(budget(), 4 * kPage);
    EXPECT_GE(budget(), 2 * kPage);
    EXPECT_TRUE(grows_to(8 * kPage));
  }
}

TEST_F(LeaseSizing, AnswersCameForAllTicketsBeforeAndNoneAfter) {
  start(1);
  const std::uint64_t first = remote->tier->need(kPage), second = remote->tier->need(2 * kPage);
  EXPECT_FALSE(remote->tier->was_answered(first));
  remote->until([&] { return remote->tier->was_answered(second); });
  EXPECT_TRUE(remote->tier->was_answered(first));
  EXPECT_FALSE(remote->tier->was_answered(second + 1));
  EXPECT_GE(budget(), 2 * kPage);
}

// A call that needs much is answered for that, though another needs less right after it.
TEST_F(LeaseSizing, TheLargestNeedIsAnswered) {
  start(1);
  const std::uint64_t first = remote->tier->need(6 * kPage);
  (void)remote->tier->need(kPage);
  remote->until([&] { return remote->tier->was_answered(first); });
  EXPECT_GE(budget(), 6 * kPage);
}

// The lender hears nothing of the releases, so that it takes the pages for live ones.
TEST_F(LeaseSizing, PagesWhoseReleaseWasLostHoldUpNoReturn) {
  start(1);
  ASSERT_TRUE(grows_to(8 * kPage));
  const auto slots = stored(8);
  remote->fabric.set_partition(NodeId{SteppedRemote::kTier}, NodeId{1}, true);
  for (const tiers::SlotId slot : slots) remote->tier->release(slot);
  remote->pass(5'000'000);
  remote->fabric.set_partition(NodeId{SteppedRemote::kTier}, NodeId{1}, false);
  (void)remote->tier->need(0);
  remote->pass(10'000'000);
  EXPECT_LE(lent(0), kPage);
  EXPECT_LE(remote->lenders[0]->service->statistics().pages, 1u);
}

// As --borrow 7MB.
TEST_F(LeaseSizing, ALimitThatIsNoMultipleOfAPageIsRoundedDown) {
  remote.emplace(1);
  remote->by_need = true;
  remote->borrow_bytes = 3 * kPage + 1'000'000;
  remote->start_tier();
  EXPECT_FALSE(grows_to(5 * kPage)) << "an answer has come";
  EXPECT_EQ(budget(), 3 * kPage);
}

// The share of a lender that hangs is granted by others once its connection has ended.
TEST_F(LeaseSizing, OthersGrantWhatALenderThatDoesNotAnswerWouldHave) {
  start(2);
  remote->pass(1'000'000);
  remote->fabric.set_partition(NodeId{SteppedRemote::kTier}, NodeId{2}, true);
  EXPECT_TRUE(grows_to(6 * kPage));
  EXPECT_GE(lent(0), 6 * kPage);
}

TEST_F(LeaseSizing, BesideAFullLenderNoPageGetsASingleCopy) {
  start(2, 2);
  Second second(*remote, 2);
  ASSERT_TRUE(second.grows_to(6 * kPage));
  const std::uint64_t ticket = remote->tier->need(4 * kPage);
  second.until([&] { return remote->tier->was_answered(ticket); });
  EXPECT_EQ(budget(), kPage) << "as much as the other one has room for";
  EXPECT_THAT(remote->tier->shortage(), HasSubstr("node 200"));
}

TEST_F(LeaseSizing, MemoryThatIsBeingWipedIsWaitedFor) {
  remote.emplace(0);
  remote->by_need = true;
  remote->service_config.workers = 1;
  remote->lenders.emplace_back();
  remote->start_lender(1);
  remote->start_tier();
  ASSERT_TRUE(grows_to(8 * kPage));
  Second second(*remote);
  std::thread leaves([&] { remote->tier->leave(); });
  leaves.join();
  second.until([&] { return lent(0) == 0; });
  const std::uint64_t ticket = second.tier->need(8 * kPage);
  while (!second.tier->was_answered(ticket)) {
    second.pass(1'000);
    ::usleep(1'000);  // the wipe takes real time
  }
  EXPECT_GE(second.tier->usage().budget_bytes, 8 * kPage);
}

TEST_F(LeaseSizing, WhoHasLeftAsksForNothingMore) {
  start(1);
  ASSERT_TRUE(grows_to(4 * kPage));
  std::thread leaves([&] { remote->tier->leave(); });
  leaves.join();
  remote->until([&] { return lent(0) == 0; });
  const std::uint64_t ticket = remote->tier->need(5 * kPage);
  remote->pass(10'000'000);
  EXPECT_EQ(lent(0), 0u);
  EXPECT_TRUE(remote->tier->was_answered(ticket));
}

// Of each medium. What the program is told that it could have is no more than that.
TEST_F(LeaseSizing, BeyondTheLimitOfAMediumTheNextOneIsBorrowed) {
  ScriptedDisk disk(16 * kPage);
  remote.emplace(0);
  remote->by_need = true;
  remote->borrow_bytes = 2 * kPage;
  remote->service_config.disk = &disk;
  remote->service_config.staging_bytes = 2 * kPage;
  remote->lenders.emplace_back();
  remote->start_lender(1);
  remote->start_tier();
  remote->pass(100'000);
  EXPECT_THAT(remote->tier->obtainable_places(), ::testing::ElementsAre(2 * kPage, 2 * kPage));
  EXPECT_TRUE(grows_to(3 * kPage));
  EXPECT_FALSE(grows_to(5 * kPage));
  remote->tier.reset();
  remote->node.reset();
  remote->lenders.clear();
}

// A lender of disks or HBM has the end of a lease back.
TEST_F(LeaseSizing, OfOtherMediaTheEndIsReturnedUpToTheLastPage) {
  ScriptedDisk disk(16 * kPage);
  remote.emplace(0);
  remote->by_need = true;
  remote->service_config.disk = &disk;
  remote->service_config.staging_bytes = SteppedRemote::kLenderBytes;  // no memory to lend
  remote->lenders.emplace_back();
  remote->start_lender(1);
  remote->start_tier();
  const auto on_disk = [&] { return remote->lenders[0]->service->statistics().lent.disk; };
  ASSERT_TRUE(grows_to(12 * kPage));
  const auto slots = stored(12);
  for (std::uint64_t page = 0; page < 12; ++page)
    if (page != 5) remote->tier->release(slots[page]);
  (void)remote->tier->need(0);
  remote->pass(10'000'000);
  EXPECT_EQ(on_disk(), 6 * kPage) << "page 5 is the last one";
  EXPECT_TRUE(remote->loads(slots[5], 5, 1));
  remote->tier->release(slots[5]);
  remote->pass(10'000'000);
  EXPECT_LE(on_disk(), kPage);
  EXPECT_TRUE(grows_to(16 * kPage));
  remote->tier.reset();
  remote->node.reset();
  remote->lenders.clear();
}

}  // namespace
}  // namespace vmem::rdma
