// The remote tier and the service that lends to it, over the in-process fabric.
#include "rdma/lending/remote_tier/remote_tier.hpp"

#include <gmock/gmock.h>
#include <openssl/crypto.h>

#include <algorithm>

#include "rdma/lending/remote_fixture.hpp"
#include "rdma/lending/scripted_disk.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using tiers::Outcome;
using tiers::SlotId;

TEST(RemoteTier, APageIsLoadedOnlyAsTheVersionThatWasStored) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 3, 5).outcome, Outcome::done);
  EXPECT_EQ(remote.load(slot, 3, 4).outcome, Outcome::lost) << "an older version";
  EXPECT_EQ(remote.load(slot, 4, 5).outcome, Outcome::lost) << "another page";
  EXPECT_TRUE(remote.loads(slot, 3, 5));
}

TEST(RemoteTier, WithoutPeersThereIsNoRoom) {
  SteppedRemote remote(1);
  remote.fabric.share_machine();
  remote.start_tier();
  remote.lenders[0].reset();
  remote.until([&] { return remote.tier->usage().budget_bytes == 0; });
  EXPECT_EQ(remote.tier->allocate(kPage)->grant, tiers::Grant::full);
}

// The node's end is not proved, so it may return with room.
TEST(RemoteTier, ANodeThatIsAwayIsNamedByWhoWantsRoom) {
  SteppedRemote remote(1);
  remote.start_tier();
  remote.fabric.set_partition(NodeId{100}, NodeId{1}, true);
  remote.until([&] { return remote.tier->usage().ready_bytes == 0; });
  const auto refused = remote.tier->allocate(kPage);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(refused.error().message, HasSubstr(node_address(1)));
  remote.fabric.set_partition(NodeId{100}, NodeId{1}, false);
  remote.until([&] { return remote.tier->usage().ready_bytes != 0; });
  EXPECT_EQ(remote.tier->allocate(kPage)->grant, tiers::Grant::granted);
}

// More messages than may be outstanding: the transport refuses the store at once, and the tier
// sends it later.
TEST(RemoteTier, AStoreThatCannotBeSentNowIsSentLater) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  for (std::size_t i = 0; i <= kMostOutstanding; ++i) remote.tier->release(remote.slot());
  remote.fill(0, 1, 1);
  const std::uint64_t id = remote.submit(tiers::Direction::store, slot, 0, 1, 1);
  // Without progress of the transport: the releases are outstanding when the store is to be sent.
  while (remote.node->step()) {
  }
  EXPECT_GT(remote.tier->statistics().retries, 0u);
  ASSERT_EQ(remote.wait_for(id).outcome, Outcome::done);
  EXPECT_TRUE(remote.loads(slot, 1, 1));
}

// Else nobody would find out that the node is silent.
TEST(RemoteTier, APingThatCannotBeSentNowIsSentLater) {
  SteppedRemote remote(1);
  remote.start_tier();
  for (std::size_t i = 0; i <= kMostOutstanding; ++i) remote.tier->release(remote.slot());
  while (remote.node->step()) {
  }
  remote.clock.advance(LinkTimes{}.ping_us);
  while (remote.node->step()) {
  }
  remote.pass(SteppedRemote::kRequestUs);
  remote.fabric.set_partition(NodeId{100}, NodeId{1}, true);
  remote.until([&] { return remote.tier->usage().ready_bytes == 0; });
}

TEST(RemoteTier, NothingIsSentOfWhatDidNotChange) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  const auto before = remote.tier->statistics().stored_bytes;
  const auto same = remote.store(slot, 1, 1, true);
  EXPECT_EQ(same.outcome, Outcome::done);
  EXPECT_FALSE(same.changed);
  EXPECT_EQ(remote.tier->statistics().stored_bytes, before);
}

// The dead node had the only copy of its pages. Other nodes' pages survive, and new pages find
// room.
TEST(RemoteTier, PagesOfADeadNodeAreLostAndOthersAreNot) {
  SteppedRemote remote(2);
  remote.fabric.share_machine();
  remote.start_tier();
  std::vector<SlotId> slots;
  for (std::uint64_t page = 0; page < 8; ++page) {
    slots.push_back(remote.slot());
    ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
  }
  remote.lenders[0].reset();
  std::uint64_t lost = 0;
  for (std::uint64_t page = 0; page < 8; ++page) {
    const auto loaded = remote.load(slots[page], page, 1);
    if (loaded.outcome == Outcome::done) {
      EXPECT_TRUE(remote.holds(1, page, 1));
      continue;
    }
    ++lost;
    EXPECT_EQ(loaded.outcome, Outcome::lost);
    EXPECT_EQ(loaded.error.status, VMEM_ERROR_LOST);
  }
  EXPECT_EQ(lost, 4u) << "pages go where most is free";
  EXPECT_EQ(remote.tier->statistics().copies_lost, 4u);
  for (std::uint64_t page = 0; page < 8; ++page) {
    const auto stored = remote.store(slots[page], page, 2);
    EXPECT_EQ(stored.outcome, Outcome::done) << stored.error.message;
    EXPECT_TRUE(remote.loads(slots[page], page, 2));
  }
}

TEST(RemoteTier, ANodeStartedAnewHasNothingAndIsUsedAgain) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.lenders[0].reset();
  remote.start_lender(1);
  const auto loaded = remote.load(slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::lost) << loaded.error.message;
  remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
  EXPECT_EQ(remote.store(slot, 1, 2).outcome, Outcome::done);
  EXPECT_TRUE(remote.loads(slot, 1, 2));
  EXPECT_EQ(remote.tier->statistics().reconnects, 1u);
}

TEST(RemoteTier, ANodeThatDiedElsewhereMayHaveItsPagesUntilANewOneAnswersAtItsAddress) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.lenders[0].reset();
  const std::uint64_t begun = remote.clock.now_us();
  const auto loaded = remote.load(slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::failed);
  EXPECT_EQ(loaded.error.status, VMEM_ERROR_TIMEOUT) << loaded.error.message;
  EXPECT_LT(remote.clock.now_us() - begun, SteppedRemote::kPatienceUs + 1'000'000);
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
  remote.start_lender(1);
  EXPECT_EQ(remote.load(slot, 1, 1).error.status, VMEM_ERROR_LOST);
}

// A refusal may come from a firewall, a forged reset, or a removed socket file.
TEST(RemoteTier, ANodeWhoseAddressRefusesConnectionsKeepsItsPages) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.fabric.set_silence(NodeId{1}, true);
  remote.fabric.set_refusing(NodeId{1}, true);
  const auto loaded = remote.load(slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::failed);
  EXPECT_EQ(loaded.error.status, VMEM_ERROR_TIMEOUT) << loaded.error.message;
  EXPECT_THAT(loaded.error.message, HasSubstr("nobody listens"));
  remote.fabric.set_silence(NodeId{1}, false);
  remote.fabric.set_refusing(NodeId{1}, false);
  EXPECT_TRUE(remote.loads(slot, 1, 1));
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
}

TEST(RemoteTier, AReplicaIsReadAtOnceWhenTheOtherNodeRefusesConnections) {
  SteppedRemote remote(2, 2);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.lenders[0].reset();
  const std::uint64_t begun = remote.clock.now_us();
  EXPECT_TRUE(remote.loads(slot, 1, 1));
  EXPECT_LT(remote.clock.now_us() - begun, SteppedRemote::kRequestUs);
  EXPECT_EQ(remote.store(slot, 1, 2).outcome, Outcome::done) << "with one copy";
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
  EXPECT_TRUE(remote.loads(slot, 1, 2));
}

// If a forked child of the lender keeps the connection open, nothing else reports the lender's end.
TEST(RemoteTier, TheEndOfALendersProcessIsSeenAtOnceWhateverBecomesOfItsConnection) {
  SteppedRemote remote(1);
  remote.fabric.share_machine();
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.fabric.set_partition(NodeId{1}, NodeId{100}, true);
  const auto id = remote.submit(tiers::Direction::load, slot, 1, 1, 1);
  remote.pass(100'000);
  EXPECT_EQ(remote.completion(id), nullptr);
  remote.lenders[0].reset();
  const std::uint64_t ended = remote.clock.now_us();
  EXPECT_EQ(remote.wait_for(id).error.status, VMEM_ERROR_LOST);
  EXPECT_LT(remote.clock.now_us() - ended, 150'000u);
}

TEST(RemoteTier, ANodeThatDiesAgainAndAgainDoesNotFillTheLog) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  testing::internal::CaptureStderr();
  for (std::uint64_t version = 1; version <= 30; ++version) {
    ASSERT_EQ(remote.store(slot, 1, version).outcome, Outcome::done);
    remote.lenders[0].reset();
    remote.start_lender(1);
    remote.until([&] { return remote.tier->statistics().reconnects == version; });
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(remote.tier->statistics().copies_lost, 30u);
  EXPECT_LE(std::ranges::count(log, '\n'), 2 * 5) << log;
}

TEST(RemoteTier, ReplicasSurviveADeathAndAreMadeAgain) {
  SteppedRemote remote(3, 2);
  remote.fabric.share_machine();
  remote.start_tier();
  std::vector<SlotId> slots;
  for (std::uint64_t page = 0; page < 6; ++page) {
    slots.push_back(remote.slot());
    ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
  }
  remote.lenders[0].reset();
  for (std::uint64_t page = 0; page < 6; ++page) EXPECT_TRUE(remote.loads(slots[page], page, 1));
  remote.until([&] { return remote.tier->statistics().copies_lost == 4; });
  EXPECT_EQ(std::ranges::count_if(slots, [&](SlotId slot) { return remote.tier->degraded(slot); }), 4);
  // Unchanged, but short of a replica, which is created on a live node.
  for (std::uint64_t page = 0; page < 6; ++page) {
    const auto stored = remote.store(slots[page], page, 1, true);
    EXPECT_EQ(stored.outcome, Outcome::done);
    EXPECT_FALSE(stored.changed);
    EXPECT_FALSE(remote.tier->degraded(slots[page]));
  }
  remote.lenders[1].reset();
  for (std::uint64_t page = 0; page < 6; ++page) EXPECT_TRUE(remote.loads(slots[page], page, 1));
}

TEST(RemoteTier, WhatIsStoredWithOneNodeLeftIsCountedAsSingle) {
  SteppedRemote remote(2, 2);
  remote.fabric.share_machine();
  remote.start_tier();
  remote.lenders[0].reset();
  remote.until([&] { return remote.tier->describe().contains(", 0 B;"); });
  EXPECT_EQ(remote.tier->usage().budget_bytes, SteppedRemote::kLenderBytes) << "pages have one copy then";
  EXPECT_EQ(remote.tier->usage().ready_bytes, SteppedRemote::kLenderBytes);
  const SlotId slot = remote.slot();
  EXPECT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  EXPECT_EQ(remote.tier->statistics().single_copies, 1u);
  EXPECT_TRUE(remote.loads(slot, 1, 1));
}

TEST(RemoteTier, ANodeThatIsStoppedForTenSecondsLosesNothing) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.fabric.set_silence(NodeId{1}, true);
  const auto id = remote.submit(tiers::Direction::load, slot, 1, 1, 1);
  remote.pass(10'000'000);
  EXPECT_EQ(remote.completion(id), nullptr) << "there is no other copy: it is waited for";
  remote.fabric.set_silence(NodeId{1}, false);
  EXPECT_EQ(remote.wait_for(id).outcome, Outcome::done);
  EXPECT_TRUE(remote.holds(1, 1, 1));
  EXPECT_GE(remote.tier->statistics().reconnects, 1u);
}

TEST(RemoteTier, ANodeThatIsCutOffIsWaitedForUntilTheDeadlineAndNoLonger) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.fabric.set_partition(NodeId{1}, NodeId{100}, true);
  const std::uint64_t begun = remote.clock.now_us();
  const auto loaded = remote.load(slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::failed);
  EXPECT_EQ(loaded.error.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(loaded.error.message, HasSubstr("0x200000 to 0x400000"));
  EXPECT_THAT(loaded.error.message, HasSubstr("node:1"));
  EXPECT_LT(remote.clock.now_us() - begun, SteppedRemote::kPatienceUs + 1'000'000);
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
  const std::uint64_t stores = remote.clock.now_us();
  EXPECT_EQ(remote.store(slot, 2, 2).outcome, Outcome::failed);
  EXPECT_LT(remote.clock.now_us() - stores, 3 * SteppedRemote::kRequestUs);
}

TEST(RemoteTier, APageThatDidNotArriveInTimeIsKeptAndComesWhenItsNodeIsBack) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.fabric.set_silence(NodeId{1}, true);
  for (int call = 0; call < 3; ++call) {
    const std::uint64_t begun = remote.clock.now_us();
    const auto loaded = remote.load(slot, 1, 1);
    EXPECT_EQ(loaded.outcome, Outcome::failed);
    EXPECT_EQ(loaded.error.status, VMEM_ERROR_TIMEOUT) << loaded.error.message;
    EXPECT_THAT(loaded.error.message, HasSubstr("node:1"));
    EXPECT_LT(remote.clock.now_us() - begun, SteppedRemote::kPatienceUs + 1'000'000);
  }
  remote.fabric.set_silence(NodeId{1}, false);
  EXPECT_TRUE(remote.loads(slot, 1, 1));
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
}

TEST(RemoteTier, AReplicaIsReadAtOnceWhenTheOtherNodeIsSilent) {
  SteppedRemote remote(2, 2);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  for (const std::uint64_t silent : {1, 2}) {
    remote.fabric.set_silence(NodeId{silent}, true);
    const std::uint64_t begun = remote.clock.now_us();
    EXPECT_TRUE(remote.loads(slot, 1, 1));
    EXPECT_LT(remote.clock.now_us() - begun, SteppedRemote::kRequestUs + 1'000'000);
    remote.fabric.set_silence(NodeId{silent}, false);
    remote.pass(5'000'000);
  }
}

TEST(RemoteTier, ACopyThatRotsWhereItLiesIsNotTakenForThePage) {
  SteppedRemote remote(2, 2);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  for (const auto& lender : remote.lenders) {
    EXPECT_TRUE(remote.loads(slot, 1, 1)) << "from the other one";
    lender->writable(kPage)[12345] ^= std::byte{1};
  }
  const auto loaded = remote.load(slot, 1, 1);
  EXPECT_EQ(loaded.outcome, Outcome::lost) << "both are damaged";
  for (const auto& lender : remote.lenders)
    EXPECT_EQ(lender->service->statistics().damaged, 1u) << "it was asked to look";
}

// A lender of 6 pages of memory and 8 of a disk; each stores one page of the tier.
class LenderWithADisk : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kInMemory = 6, kOnDisk = 8;
  void SetUp() override {
    remote.service_config.staging_bytes = SteppedRemote::kLenderBytes - kInMemory * kPage;
    remote.service_config.disk = &disk;
    remote.start_lender(1);
    remote.start_tier();
    for (std::uint64_t page = 0; page < kInMemory + 2; ++page) {
      slots.push_back(remote.slot());
      ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
    }
    ASSERT_EQ(remote.tier->usage().budget_bytes, (kInMemory + kOnDisk) * kPage);
  }
  ScriptedDisk disk{kOnDisk * kPage};
  SteppedRemote remote{1};
  std::vector<SlotId> slots;
};

TEST_F(LenderWithADisk, CapacityFollowsALendersDiskThatFailsAndWhatLiesThereIsRead) {
  disk.left = 0;
  const std::uint64_t failed = remote.clock.now_us();
  remote.until([&] { return remote.tier->usage().budget_bytes == kInMemory * kPage; });
  EXPECT_LT(remote.clock.now_us() - failed, 100'000u) << "nobody used the disk meanwhile";
  EXPECT_EQ(remote.tier->usage().ready_bytes, 0u);
  EXPECT_EQ(remote.tier->allocate(kPage)->grant, tiers::Grant::full);
  EXPECT_TRUE(remote.loads(slots[kInMemory], kInMemory, 1));
  remote.tier->release(slots[0]);
  EXPECT_EQ(remote.store(remote.slot(), 20, 1).outcome, Outcome::done) << "memory is as it was";
}

TEST_F(LenderWithADisk, AStoreThatFindsTheLendersDiskDeadNamesTheNodeAndTheDisk) {
  disk.left = 0;
  disk.takes_writes = false;
  const auto stored = remote.store(slots[kInMemory], kInMemory, 2);
  EXPECT_EQ(stored.outcome, Outcome::failed);
  EXPECT_THAT(stored.error.message, HasSubstr("node:1"));
  EXPECT_THAT(stored.error.message, HasSubstr("its disk failed"));
  EXPECT_THAT(stored.error.message, Not(HasSubstr("memory")));
  EXPECT_EQ(remote.tier->usage().budget_bytes, kInMemory * kPage) << "known by the time of the answer";
}

TEST_F(LenderWithADisk, AStoreThatFindsTheLendersDiskDeadGoesToItsMemoryWhereThereIsRoom) {
  remote.tier->release(slots[0]);
  disk.left = 0;
  disk.takes_writes = false;
  const auto stored = remote.store(slots[kInMemory], kInMemory, 2);
  EXPECT_EQ(stored.outcome, Outcome::done) << stored.error.message;
  EXPECT_TRUE(remote.loads(slots[kInMemory], kInMemory, 2));
}

// Takes all memory that OpenSSL may allocate.
class OpenSslWithoutMemory {
 public:
  OpenSslWithoutMemory() {
    for (std::size_t bytes = std::size_t{64} << 20; bytes >= 16; bytes /= 2) {
      while (void* const memory = OPENSSL_malloc(bytes)) taken_.push_back(memory);
    }
  }
  ~OpenSslWithoutMemory() {
    for (void* const memory : taken_) OPENSSL_free(memory);
    (void)openssl_words();
  }
  OpenSslWithoutMemory(const OpenSslWithoutMemory&) = delete;
  OpenSslWithoutMemory& operator=(const OpenSslWithoutMemory&) = delete;

 private:
  std::vector<void*> taken_;
};

TEST(RemoteTier, APageThatThereIsNoMemoryToCheckOrToProtectIsKept) {
  for (const auto mode : {PageAead::Mode::authenticate, PageAead::Mode::encrypt}) {
    SteppedRemote remote(1);
    remote.protection = mode;
    remote.start_tier();
    const SlotId slot = remote.slot();
    ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
    {
      const OpenSslWithoutMemory none;
      for (const auto& ended : {remote.load(slot, 1, 1), remote.store(slot, 1, 2)}) {
        EXPECT_EQ(ended.outcome, Outcome::failed);
        EXPECT_EQ(ended.error.status, VMEM_ERROR_OUT_OF_MEMORY);
        EXPECT_EQ(ended.error.native, ENOMEM) << ended.error.message;
      }
    }
    EXPECT_EQ(remote.tier->statistics().checksum_failures, 0u);
    EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
    EXPECT_TRUE(remote.loads(slot, 1, 1));
    EXPECT_EQ(remote.store(slot, 1, 2).outcome, Outcome::done);
  }
}

TEST(RemoteTier, FinishWaitsForNobodyLongerThanARequest) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  EXPECT_EQ(remote.tier->usage().used_bytes, kPage);
  remote.tier->release(slot);
  remote.until([&] { return remote.lenders[0]->service->statistics().pages == 0; });
  EXPECT_EQ(remote.tier->usage().used_bytes, 0u);
}

// Its lease has gone back with all pages in it, so nothing is sent for the page.
TEST(RemoteTier, APageThatIsReleasedAfterLeavingCostsNoConnection) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  testing::internal::CaptureStderr();
  remote.tier->leave();  // nobody steps the tier: this waits in vain
  remote.tier->release(slot);
  remote.until([&] { return remote.lenders[0]->service->statistics().clients == 0; });
  remote.pass(3 * SteppedRemote::kRequestUs);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("did not answer")));
}

TEST(LeaseReturns, ThoseThatReturnNothingWaitForNobody) {
  LeaseReturns returns;
  returns.sent(0);
  EXPECT_TRUE(returns.wait(0));
}

TEST(LeaseReturns, EachLenderIsWaitedFor) {
  LeaseReturns returns;
  EXPECT_FALSE(returns.wait(0));
  returns.sent(2);
  returns.ended();
  EXPECT_FALSE(returns.wait(0));
  returns.ended();
  EXPECT_TRUE(returns.wait(0));
}

}  // namespace
}  // namespace vmem::rdma
