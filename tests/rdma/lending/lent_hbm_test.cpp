// Pages in HBM that a lender lends, and that its owner wants back.
#include <gmock/gmock.h>

#include "rdma/lending/remote_fixture.hpp"
#include "rdma/lending/scripted_disk.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;
using tiers::Outcome;
using tiers::SlotId;

// The first lender has HBM and memory; others that join have memory.
class LentHbm : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kStaging = 2, kMemory = SteppedRemote::kLenderBytes / kPage - kStaging, kHbm = 8;
  void SetUp() override {
    remote.service_config.staging_bytes = kStaging * kPage;
    remote.service_config.hbm = &hbm;
    remote.lenders.emplace_back();
    remote.start_lender(1);
    remote.service_config.staging_bytes = 0;
    remote.service_config.hbm = nullptr;
    remote.start_tier();
  }
  void join(std::uint64_t id) {
    remote.lenders.emplace_back();
    remote.start_lender(id);
    remote.tier->follow({{id, {node_address(id)}}});
    remote.until([&] { return remote.connected() == remote.lenders.size(); });
  }
  void store_pages(std::uint64_t pages) {
    for (std::uint64_t page = slots.size(); page < pages; ++page) {
      slots.push_back(remote.slot());
      ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
    }
  }
  void expect_all_readable() {
    for (std::uint64_t page = 0; page < slots.size(); ++page) EXPECT_TRUE(remote.loads(slots[page], page, 1)) << page;
  }
  std::uint64_t in_hbm() const { return remote.lenders[0]->service->statistics().held.hbm / kPage; }

  // The end of a send is known a little after the load.
  const ServiceStatistics& figures() {
    remote.pass(10'000);
    return figures_ = remote.lenders[0]->service->statistics();
  }

  ScriptedHbm hbm{kHbm * kPage};
  SteppedRemote remote{0};
  std::vector<SlotId> slots;

 private:
  ServiceStatistics figures_;
};

TEST_F(LentHbm, IsUsedLikeMemoryAndCounts) {
  EXPECT_EQ(remote.tier->usage().budget_bytes, (kMemory + kHbm) * kPage);
  EXPECT_THAT(remote.tier->describe(), HasSubstr("28 MiB, 16 MiB of it HBM"));
  store_pages(kMemory + kHbm);
  EXPECT_EQ(in_hbm(), kHbm);
  expect_all_readable();
  for (const SlotId slot : slots) remote.tier->release(slot);
  remote.until([&] { return in_hbm() == 0; });
}

// No more leave than have to.
TEST_F(LentHbm, PagesLeaveWhenTheOwnerWantsItBackAndComeAgainWhenItIsLentAgain) {
  store_pages(kMemory + kHbm);
  join(2);
  hbm.left = 3 * kPage;
  const std::uint64_t began_us = remote.clock.now_us();
  remote.until([&] { return in_hbm() <= 3; });
  EXPECT_LT(remote.clock.now_us() - began_us, 2'000'000u) << "no rate holds it up";
  remote.pass(2'000'000);
  EXPECT_EQ(in_hbm(), 3u);
  EXPECT_EQ(remote.lenders[1]->service->statistics().pages, kHbm - 3);
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
  expect_all_readable();
  hbm.left = kHbm * kPage;
  const std::uint64_t all = (kMemory + kHbm) * kPage + SteppedRemote::kLenderBytes;
  remote.until([&] { return remote.tier->usage().budget_bytes == all; });
  store_pages(all / kPage);
  EXPECT_EQ(in_hbm(), kHbm);
  expect_all_readable();
}

// What leaves is fetched, and the lender that is to take it does not answer.
TEST_F(LentHbm, WhatTheOwnerWantsBackIsOnItsWayAlsoBesideLoads) {
  store_pages(kMemory + kHbm);
  join(2);
  remote.until([&] { return remote.tier->usage().budget_bytes > (kMemory + kHbm) * kPage; });
  store_pages(kMemory + kHbm + 1);
  const std::uint64_t fetched = figures().fetched_bytes;
  std::unique_ptr<Lender> silent = std::move(remote.lenders[1]);
  const std::uint64_t load = remote.submit(tiers::Direction::load, slots.back(), 1, slots.size() - 1, 1);
  hbm.left = 2 * kPage;
  remote.pass(SteppedRemote::kRequestUs / 2);
  EXPECT_GT(remote.lenders[0]->service->statistics().fetched_bytes - fetched, kPage) << "not one by one";
  remote.lenders[1] = std::move(silent);
  remote.until([&] { return in_hbm() == 2; });
  EXPECT_EQ(remote.wait_for(load).outcome, Outcome::done);
  expect_all_readable();
}

TEST_F(LentHbm, ALeaseThatWasGrantedWhileTheOwnerLentLessGrowsOnceItLendsMore) {
  hbm.left = 2 * kPage;
  remote.start_tier(101);
  const std::uint64_t memory = kMemory * kPage;
  EXPECT_EQ(remote.tier->usage().budget_bytes, memory + 2 * kPage);
  hbm.left = kHbm * kPage;
  remote.until([&] { return remote.tier->usage().budget_bytes == memory + kHbm * kPage; });
  store_pages(kMemory + kHbm);
  EXPECT_EQ(in_hbm(), kHbm);
  expect_all_readable();
  hbm.left = 3 * kPage;
  remote.until([&] { return remote.tier->usage().budget_bytes == memory + 3 * kPage; });
}

TEST_F(LentHbm, WithoutRoomElsewherePagesStayUntilThereIsSome) {
  store_pages(kMemory + kHbm);
  hbm.left = 0;
  remote.pass(3'000'000);
  EXPECT_EQ(in_hbm(), kHbm);
  expect_all_readable();
  join(2);
  remote.until([&] { return in_hbm() == 0; });
  expect_all_readable();
}

// The lender has less than it said a moment ago.
TEST_F(LentHbm, APageThatItHasNoRoomForGoesElsewhere) {
  store_pages(kMemory);
  join(2);
  hbm.full = true;
  hbm.left = 0;
  store_pages(kMemory + 4);
  EXPECT_EQ(in_hbm(), 0u);
  EXPECT_EQ(remote.lenders[1]->service->statistics().pages, 4u);
  expect_all_readable();
}

TEST_F(LentHbm, AFailedCopyOfAStoreIsTriedElsewhere) {
  store_pages(kMemory);
  join(2);
  hbm.takes_writes = false;
  hbm.left = 0;
  store_pages(kMemory + 1);
  EXPECT_EQ(remote.lenders[1]->service->statistics().pages, 1u);
  expect_all_readable();
}

// A fabric that sends from HBM. The first pages are in memory, those from kMemory on in HBM.
class DirectHbm : public LentHbm {
 protected:
  void SetUp() override {
    remote.fabric.send_gpu_memory();
    LentHbm::SetUp();
  }
};

TEST_F(LentHbm, GoesThroughStagingWhereTheTransportDoesNotSendFromIt) {
  store_pages(kMemory + kHbm);
  expect_all_readable();
  EXPECT_EQ(figures().hbm_direct, 0u);
  EXPECT_EQ(figures().hbm_staged, kHbm);
}

TEST_F(DirectHbm, PagesAreFetchedFromTheirPlace) {
  store_pages(kMemory + kHbm);
  expect_all_readable();
  EXPECT_EQ(figures().hbm_direct, kHbm);
  EXPECT_EQ(figures().hbm_staged, 0u);
  EXPECT_EQ(hbm.loads, 0u);
  EXPECT_EQ(hbm.pinned, 0u);
}

// The borrower's UCX, or its release, takes nothing from GPU memory.
class DirectHbmUnasked : public DirectHbm {
 protected:
  void SetUp() override {
    remote.fabric.take_no_gpu_memory(NodeId{100});
    DirectHbm::SetUp();
  }
};

TEST_F(DirectHbmUnasked, PagesAreStagedAndNoConnectionBreaks) {
  std::uint64_t broken = 0;
  hbm.on_pin = [&] {
    ++broken;
    remote.lenders[0]->node->peers().close_incoming();
  };
  store_pages(kMemory + kHbm);
  expect_all_readable();
  EXPECT_EQ(broken, 0u);
  EXPECT_EQ(figures().hbm_direct, 0u);
  EXPECT_EQ(figures().hbm_staged, kHbm);
  EXPECT_EQ(remote.tier->statistics().reconnects, 0u);
}

// On its way it keeps its place, though its borrower gave it up.
TEST_F(DirectHbm, APageIsPinnedWhileItIsSent) {
  store_pages(kMemory + 1);
  remote.fabric.set_latency(1000);
  const std::uint64_t load = remote.submit(tiers::Direction::load, slots[kMemory], 1, kMemory, 1);
  remote.until([&] { return hbm.pinned == 1; });
  EXPECT_EQ(remote.completion(load), nullptr);
  EXPECT_EQ(remote.wait_for(load).outcome, Outcome::done);
  EXPECT_TRUE(remote.holds(1, kMemory, 1));
  remote.tier->release(slots[kMemory]);
  remote.until([&] { return in_hbm() == 0; });
  EXPECT_EQ(hbm.pinned, 0u);
  slots.pop_back();
}

TEST_F(DirectHbm, APageThatCannotBePinnedIsStaged) {
  store_pages(kMemory + 2);
  hbm.pins = false;
  EXPECT_TRUE(remote.loads(slots[kMemory], kMemory, 1));
  hbm.pins = true;
  EXPECT_TRUE(remote.loads(slots[kMemory + 1], kMemory + 1, 1));
  EXPECT_EQ(figures().hbm_direct, 1u);
  EXPECT_EQ(figures().hbm_staged, 1u);
}

TEST_F(DirectHbm, APageThatArrivedDamagedIsStagedAndCheckedNext) {
  store_pages(kMemory + 1);
  FaultyTransport& faults = *remote.lenders[0]->faults;
  faults.set_faults({.corrupt_payload = 1});
  const std::uint64_t load = remote.submit(tiers::Direction::load, slots[kMemory], 1, kMemory, 1);
  remote.until([&] { return faults.counts().payloads_corrupted == 1; });
  faults.set_faults({});
  EXPECT_EQ(remote.wait_for(load).outcome, Outcome::done);
  EXPECT_TRUE(remote.holds(1, kMemory, 1));
  EXPECT_EQ(figures().hbm_direct, 1u);
  EXPECT_EQ(figures().hbm_staged, 1u);
  EXPECT_EQ(hbm.loads, 1u);
}

// As if the network's library could not send from that memory, whatever it said.
TEST_F(DirectHbm, PagesAreStagedAfterConnectionsThatBrokeDuringDirectSends) {
  store_pages(kMemory + 2);
  std::uint64_t broken = 0;
  hbm.on_pin = [&] {
    ++broken;
    remote.lenders[0]->node->peers().close_incoming();
  };
  EXPECT_TRUE(remote.loads(slots[kMemory], kMemory, 1));
  EXPECT_EQ(broken, 2u);
  EXPECT_TRUE(remote.loads(slots[kMemory + 1], kMemory + 1, 1));
  EXPECT_EQ(broken, 2u);
  EXPECT_EQ(figures().hbm_direct, 0u);
  EXPECT_EQ(figures().hbm_staged, 2u);
  EXPECT_EQ(hbm.pinned, 0u);
}

// The pages wait for their turns when the connection ends.
TEST_F(DirectHbm, NothingIsPinnedForABorrowerThatIsGone) {
  store_pages(kMemory + 4);
  expect_all_readable();
  const std::uint64_t sent = figures().hbm_direct;
  remote.fabric.set_latency(1000);
  std::uint64_t pins = 0, for_nobody = 0;
  hbm.on_pin = [&] {
    if (!remote.lenders[0]->node->peers().has_incoming()) ++for_nobody;
    if (++pins == 1) remote.lenders[0]->node->peers().close_incoming();
  };
  std::vector<std::uint64_t> loads;
  for (std::uint64_t page = kMemory; page < kMemory + 4; ++page)
    loads.push_back(remote.submit(tiers::Direction::load, slots[page], page - kMemory, page, 1));
  for (const std::uint64_t load : loads) EXPECT_EQ(remote.wait_for(load).outcome, Outcome::done);
  EXPECT_EQ(for_nobody, 0u);
  EXPECT_EQ(figures().hbm_direct + figures().hbm_staged, sent + 4);
  EXPECT_EQ(hbm.pinned, 0u);
}

TEST_F(DirectHbm, OneBrokenConnectionChangesNothingOnceAPageWasSentAgain) {
  store_pages(kMemory + 1);
  for (int round = 0; round < 3; ++round) {
    hbm.on_pin = [&] {
      remote.lenders[0]->node->peers().close_incoming();
      hbm.on_pin = {};
    };
    EXPECT_TRUE(remote.loads(slots[kMemory], kMemory, 1));
    EXPECT_EQ(figures().hbm_direct, round + 1u);
  }
  EXPECT_EQ(figures().hbm_staged, 0u);
}

TEST_F(DirectHbm, PagesLeaveItDirectlyWhenTheOwnerWantsItBack) {
  store_pages(kMemory + kHbm);
  join(2);
  hbm.left = 3 * kPage;
  remote.until([&] { return in_hbm() <= 3; });
  EXPECT_GE(figures().hbm_direct, kHbm - 3);
  EXPECT_EQ(figures().hbm_staged, 0u);
  expect_all_readable();
}

}  // namespace
}  // namespace vmem::rdma
