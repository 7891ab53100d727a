// The remote tier and the service that lends to it, over the in-process fabric.
#include "rdma/remote_tier.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <openssl/crypto.h>

#include <algorithm>

#include "rdma/remote_fixture.hpp"
#include "rdma/scripted_disk.hpp"
#include "rdma/trust/openssl.hpp"
#include "tiers/disk/disk_tier.hpp"
#include "tiers/disk/uring_queue.hpp"
#include "tiers/tier_conformance.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;
using tiers::Outcome;
using tiers::SlotId;

// Each node with its own threads.
template <std::size_t kLenders, std::uint32_t kReplicas, std::uint64_t kDiskPages = 0>
class ThreadedRemote {
 public:
  ThreadedRemote() {
    for (std::uint64_t id = 1; id <= kLenders; ++id) {
      MemoryService::Config service{.workers = 1};
      if (kDiskPages != 0) {
        service.staging_bytes = 2 * kPage;
        disk_ = make_disk();
        service.disk = disk_.get();
      }
      const std::uint64_t memory = (kPages * kReplicas / kLenders - kDiskPages) * kPage;
      lenders_.push_back(std::make_unique<Lender>(fabric_, clock_, NodeIdentity{NodeId{id}, Incarnation{1}}, service,
                                                  memory + service.staging_bytes, true));
    }
    RemoteTier::Config config;
    config.self = {NodeId{100}, Incarnation{1}};
    for (std::uint64_t id = 1; id <= kLenders; ++id) config.peers.push_back(node_address(id));
    config.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      return fabric_.node({NodeId{100}, Incarnation{1}}, receiver);
    };
    config.clock = &clock_;
    config.replicas = kReplicas;
    tier_ = *RemoteTier::create(std::move(config));
    const auto reached = tier_->wait_for_peers(20'000'000);
    EXPECT_TRUE(reached) << reached.error().message;
    for (auto& memory : memories_) memory = page_memory(kPage);
  }
  ~ThreadedRemote() {
    tier_.reset();
    lenders_.clear();
  }
  tiers::Tier& tier() { return *tier_; }
  static constexpr std::uint64_t kPages = 8;
  std::uint64_t budget_bytes() const { return kPages * kPage; }
  void wait_until_ready() {}
  void aim(tiers::Transfer& transfer, std::size_t i) {
    transfer.host = memories_[i].get();
    transfer.version = 1;
  }
  void fill(std::size_t i, unsigned char value) { std::memset(memories_[i].get(), value, kPage); }
  bool holds(std::size_t i, unsigned char value) {
    const auto* bytes = reinterpret_cast<unsigned char*>(memories_[i].get());
    return std::all_of(bytes, bytes + kPage, [&](unsigned char byte) { return byte == value; });
  }

 private:
  std::unique_ptr<tiers::DiskTier> make_disk() {
    tiers::DiskTier::Config config;
    config.directories.push_back({".", kDiskPages * kPage});
    config.make_queue = [](const std::vector<int>& files) -> Result<std::unique_ptr<tiers::IoQueue>> {
      return tiers::make_uring_queue({.files = files, .depth = 16});
    };
    config.on_ready = [] {};
    return *tiers::DiskTier::create(std::move(config));
  }
  SteadyClock clock_;
  Fabric fabric_{clock_};
  std::unique_ptr<tiers::DiskTier> disk_;
  std::vector<std::unique_ptr<Lender>> lenders_;
  PageMemory memories_[2];
  std::unique_ptr<RemoteTier> tier_;
};

}  // namespace
}  // namespace vmem::rdma

namespace vmem::tiers {
using OneLender = rdma::ThreadedRemote<1, 1>;
using TwoLenders = rdma::ThreadedRemote<2, 1>;
using Replicas = rdma::ThreadedRemote<2, 2>;
using WithADisk = rdma::ThreadedRemote<1, 1, 7>;
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StreamOrderedTierConformance);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteOneLender, TierConformance, OneLender);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteTwoLenders, TierConformance, TwoLenders);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteReplicas, TierConformance, Replicas);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteDisk, TierConformance, WithADisk);
}  // namespace vmem::tiers

namespace vmem::rdma {
namespace {

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

// Its end is not proved: it may come back, with room.
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

// More messages than may be outstanding: the store is refused by the transport at once, and is made later.
TEST(RemoteTier, AStoreThatCannotBeSentNowIsSentLater) {
  SteppedRemote remote(1);
  remote.start_tier();
  const SlotId slot = remote.slot();
  for (std::size_t i = 0; i <= kMostOutstanding; ++i) remote.tier->release(remote.slot());
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  EXPECT_GT(remote.tier->statistics().retries, 0u);
  EXPECT_TRUE(remote.loads(slot, 1, 1));
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

// The only copy is gone with its node; other nodes' pages are not, and there is room for what comes.
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

// A firewall that rejects, a forged reset, a socket's file that was removed.
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

// Of a lender whose forked child keeps the connection open, nothing else would be heard.
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
  EXPECT_EQ(std::ranges::count_if(slots, [&](SlotId slot) { return !remote.tier->kept(slot); }), 4);
  // Not changed, but with one copy less: that one is made on a node that is there.
  for (std::uint64_t page = 0; page < 6; ++page) {
    const auto stored = remote.store(slots[page], page, 1, true);
    EXPECT_EQ(stored.outcome, Outcome::done);
    EXPECT_FALSE(stored.changed);
    EXPECT_TRUE(remote.tier->kept(slots[page]));
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

// A lender of 6 pages of memory and 8 of a disk, which keep one of the tier's pages each.
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
  EXPECT_THAT(stored.error.message, ::testing::Not(HasSubstr("memory")));
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

// Takes all that OpenSSL may have.
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

// ---- a thousand messages with accidents ----

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kAccidents = 150;
#else
constexpr std::uint64_t kAccidents = 1000;
#endif

struct Accidents {
  const char* name;
  Faults faults;
  std::uint32_t replicas;
  std::uint64_t count = kAccidents;
};
class WithAccidents : public ::testing::TestWithParam<Accidents> {};

// Whatever happens to messages, what is loaded is right, or it is said to be lost; and with whole messages again, all goes on.
TEST_P(WithAccidents, NoByteIsWrong) {
  const Accidents& accidents = GetParam();
  SteppedRemote remote(2, accidents.replicas);
  remote.seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", remote.seed));
  remote.start_tier();
  remote.faults->set_faults(accidents.faults);
  for (const auto& lender : remote.lenders) lender->faults->set_faults(accidents.faults);
  std::mt19937_64 random(remote.seed);
  struct Known {
    SlotId slot;
    std::uint64_t version = 0;  // 0: stored nothing
  };
  std::vector<Known> pages;
  for (int i = 0; i < 6; ++i) pages.push_back({remote.slot()});
  const auto met = [&] {
    std::uint64_t sum = 0;
    const auto add = [&](const FaultCounts& c) {
      sum += c.dropped + c.headers_corrupted + c.payloads_corrupted + c.misdirected + c.duplicated;
    };
    add(remote.faults->counts());
    for (const auto& lender : remote.lenders) add(lender->faults->counts());
    return sum;
  };
  std::uint64_t version = 0, loads = 0, lost = 0;
  while (met() < accidents.count) {
    const std::uint64_t page = random() % pages.size();
    Known& known = pages[page];
    if (known.version == 0 || random() % 3 == 0) {
      ++version;
      known.version = remote.store(known.slot, page, version).outcome == Outcome::done ? version : 0;
      continue;
    }
    ++loads;
    const auto loaded = remote.load(known.slot, page, known.version);
    if (loaded.outcome == Outcome::done) {
      ASSERT_TRUE(remote.holds(1, page, known.version)) << "wrong bytes";
    } else {
      ++lost;
      known.version = 0;
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  fmt::print("{}: {} accidents, {} stores, {} loads, {} lost, seed {}\n", accidents.name, met(), version, loads, lost,
             remote.seed);
  remote.faults->set_faults({});
  for (const auto& lender : remote.lenders) lender->faults->set_faults({});
  remote.pass(10'000'000);
  for (std::uint64_t page = 0; page < pages.size(); ++page) {
    ASSERT_EQ(remote.store(pages[page].slot, page, ++version).outcome, Outcome::done);
    ASSERT_TRUE(remote.loads(pages[page].slot, page, version));
  }
}

INSTANTIATE_TEST_SUITE_P(Remote, WithAccidents,
                         ::testing::Values(Accidents{"payloads", {.corrupt_payload = 0.6}, 1},
                                           Accidents{"headers", {.corrupt_header = 0.25}, 1},
                                           Accidents{"misdirected", {.misdirect = 0.5}, 1, kAccidents / 5},
                                           Accidents{"duplicates", {.duplicate = 0.5}, 1},
                                           Accidents{"everything",
                                                     {.drop = 0.02,
                                                      .duplicate = 0.1,
                                                      .delay = 0.1,
                                                      .corrupt_header = 0.02,
                                                      .corrupt_payload = 0.1,
                                                      .misdirect = 0.05,
                                                      .delay_us = 3'000'000},
                                                     2}),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace vmem::rdma
