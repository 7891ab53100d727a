// Lenders that join and leave while a tier uses others.
#include <gmock/gmock.h>

#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;
using tiers::Outcome;
using tiers::SlotId;

TEST(RemoteTier, ALenderThatJoinsIsUsedAtOnce) {
  SteppedRemote remote(1);
  remote.start_tier();
  std::vector<SlotId> slots;
  for (std::uint64_t page = 0; page < 8; ++page) slots.push_back(remote.slot());
  EXPECT_EQ(remote.tier->allocate(kPage)->grant, tiers::Grant::full);
  remote.lenders.emplace_back();
  remote.start_lender(2);
  remote.tier->follow({{7, {"node:77", node_address(2)}}});
  remote.until([&] { return remote.tier->usage().budget_bytes == 2 * SteppedRemote::kLenderBytes; });
  EXPECT_THAT(remote.tier->describe(), HasSubstr("node:77 by "));
  const SlotId more = remote.slot();
  ASSERT_EQ(remote.store(more, 50, 1).outcome, Outcome::done);
  EXPECT_TRUE(remote.loads(more, 50, 1));
  EXPECT_EQ(remote.lenders[1]->service->statistics().pages, 1u);
}

TEST(RemoteTier, ALenderThatIsRemovedTakesItsCopiesAndNoOthers) {
  SteppedRemote remote(0, 2);
  remote.start_tier();
  for (std::uint64_t id = 1; id <= 2; ++id) {
    remote.lenders.emplace_back();
    remote.start_lender(id);
  }
  remote.tier->follow({{1, {node_address(1)}}, {2, {node_address(2)}}});
  remote.until([&] { return remote.connected() == 2 && remote.tier->usage().ready_bytes > 0; });
  std::vector<SlotId> slots;
  for (std::uint64_t page = 0; page < 4; ++page) {
    slots.push_back(remote.slot());
    ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
  }
  remote.lenders[0].reset();
  remote.tier->follow({{2, {node_address(2)}}});
  remote.until([&] { return remote.tier->statistics().copies_lost == 4; });
  for (std::uint64_t page = 0; page < 4; ++page) EXPECT_TRUE(remote.loads(slots[page], page, 1));
  remote.pass(1'000'000);
  EXPECT_EQ(remote.tier->statistics().reconnects, 0u);
  remote.lenders[1].reset();
  remote.tier->follow({});
  remote.until([&] { return remote.tier->usage().budget_bytes == 0; });
  EXPECT_EQ(remote.load(slots[0], 0, 1).outcome, Outcome::lost);
}

// A lender whose membership has ended, as when etcd did not hear of it for longer than its lease.
class Unlisted : public ::testing::Test {
 protected:
  void SetUp() override {
    remote.start_tier();
    remote.lenders.emplace_back();
    lender = {.name = 7, .addresses = {node_address(1)}, .node = remote.start_lender(1)};
    remote.tier->follow({lender});
    remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
    for (std::uint64_t page = 0; page < 4; ++page) {
      slots.push_back(remote.slot());
      ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
    }
  }
  void expect_all_readable() {
    for (std::uint64_t page = 0; page < slots.size(); ++page) EXPECT_TRUE(remote.loads(slots[page], page, 1));
    EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
    EXPECT_EQ(remote.tier->statistics().reconnects, 0u);
  }

  SteppedRemote remote{0};
  NamedLender lender;
  std::vector<SlotId> slots;
};

TEST_F(Unlisted, ItsPagesAreThereWhileItAnswers) {
  remote.tier->follow({});
  remote.pass(5'000'000);
  expect_all_readable();
}

TEST_F(Unlisted, BackUnderAnotherNameItIsUsedAsBefore) {
  remote.tier->follow({});
  remote.pass(5'000'000);
  lender.name = 9;
  remote.tier->follow({lender});
  remote.turn();
  const SlotId more = remote.slot();
  ASSERT_EQ(remote.store(more, 50, 1).outcome, Outcome::done);
  EXPECT_TRUE(remote.loads(more, 50, 1));
  expect_all_readable();
  EXPECT_EQ(remote.tier->usage().budget_bytes, SteppedRemote::kLenderBytes) << "it is one node";
}

TEST_F(Unlisted, ItMayChangeItsNameAtOnce) {
  lender.name = 9;
  remote.tier->follow({lender});
  remote.pass(1'000'000);
  expect_all_readable();
  remote.tier->follow({});
  lender.name = 7;
  remote.tier->follow({lender});
  remote.pass(1'000'000);
  expect_all_readable();
}

TEST_F(Unlisted, ItsPagesMoveToThoseThatAreListed) {
  remote.lenders.emplace_back();
  const NamedLender other{.name = 8, .addresses = {node_address(2)}, .node = remote.start_lender(2)};
  remote.tier->follow({other});
  remote.until([&] { return remote.lenders[1]->service->statistics().pages == slots.size(); });
  remote.until([&] { return remote.lenders[0]->service->statistics().pages == 0; });
  expect_all_readable();
}

TEST_F(Unlisted, WithItsConnectionItsPagesAreLost) {
  remote.tier->follow({});
  remote.pass(1'000'000);
  remote.lenders[0].reset();
  remote.until([&] { return remote.tier->statistics().copies_lost == 4; });
  EXPECT_EQ(remote.load(slots[0], 0, 1).outcome, Outcome::lost);
  lender = {.name = 9, .addresses = {node_address(1)}, .node = remote.start_lender(1)};
  remote.tier->follow({lender});
  remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
  const SlotId more = remote.slot();
  ASSERT_EQ(remote.store(more, 50, 1).outcome, Outcome::done);
  EXPECT_TRUE(remote.loads(more, 50, 1));
}

// The registry lists a killed daemon until its lease ends, also beside its successor.
TEST(RemoteTier, WhatALendersSuccessorHoldsOutlivesTheLender) {
  SteppedRemote remote(0);
  remote.start_tier();
  remote.lenders.emplace_back();
  const NodeIdentity first = remote.start_lender(1);
  const NamedLender before{.name = 7, .addresses = {node_address(1)}, .node = first};
  remote.tier->follow({before});
  remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
  const SlotId lost = remote.slot();
  ASSERT_EQ(remote.store(lost, 0, 1).outcome, Outcome::done);
  const NamedLender after{.name = 8, .addresses = {node_address(1)}, .node = remote.start_lender(1)};
  remote.tier->follow({before, after});
  remote.until([&] { return remote.tier->statistics().copies_lost == 1; });
  remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
  remote.pass(1'000'000);
  EXPECT_EQ(remote.tier->usage().budget_bytes, SteppedRemote::kLenderBytes) << "it is one node";
  const SlotId kept = remote.slot();
  ASSERT_EQ(remote.store(kept, 1, 1).outcome, Outcome::done);
  remote.tier->follow({after});
  remote.pass(1'000'000);
  EXPECT_TRUE(remote.loads(kept, 1, 1));
  EXPECT_EQ(remote.tier->statistics().copies_lost, 1u);
  EXPECT_LE(remote.tier->statistics().reconnects, 1u) << "the lender's own link may have displaced it once";
}

// A program may join while both are listed.
TEST(RemoteTier, ALenderThatItsSuccessorAnswersForIsNotUsed) {
  SteppedRemote remote(0);
  remote.start_tier();
  remote.lenders.emplace_back();
  const NamedLender before{.name = 7, .addresses = {node_address(1)}, .node = remote.start_lender(1)};
  const NamedLender after{.name = 8, .addresses = {node_address(1)}, .node = remote.start_lender(1)};
  remote.tier->follow({before, after});
  remote.until([&] { return remote.tier->usage().ready_bytes > 0; });
  remote.pass(1'000'000);
  EXPECT_EQ(remote.tier->usage().budget_bytes, SteppedRemote::kLenderBytes);
  EXPECT_LE(remote.tier->statistics().reconnects, 1u);
  const SlotId slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 1, 1).outcome, Outcome::done);
  remote.tier->follow({after});
  remote.turn();
  EXPECT_TRUE(remote.loads(slot, 1, 1));
}

// A lender with two addresses.
class SecondAddress : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSecond = 2;

  void SetUp() override {
    remote.start_tier();
    remote.lenders.emplace_back();
    remote.start_lender(1);
    remote.tier->follow({{1, {node_address(1), node_address(1) + "/2"}}});
    remote.until([&] { return remote.connected() == 1 && remote.tier->usage().ready_bytes > 0; });
    for (std::uint64_t page = 0; page < 4; ++page) {
      slots.push_back(remote.slot());
      ASSERT_EQ(remote.store(slots[page], page, 1).outcome, Outcome::done);
    }
  }
  // Microseconds until the transfer has succeeded.
  std::uint64_t time_of(std::uint64_t id) {
    const std::uint64_t began_us = remote.clock.now_us();
    const auto ended = remote.wait_for(id);
    EXPECT_EQ(ended.outcome, Outcome::done) << ended.error.message;
    return remote.clock.now_us() - began_us;
  }

  SteppedRemote remote{0};
  std::vector<SlotId> slots;
};

TEST_F(SecondAddress, LoadsAndStoresGoOnOverItWhenTheFirstIsSilent) {
  remote.fabric.set_cut(NodeId{1}, 0, true);
  remote.fill(2, 3, 2);
  const std::uint64_t store = remote.submit(tiers::Direction::store, slots[3], 2, 3, 2);
  const std::uint64_t load = remote.submit(tiers::Direction::load, slots[0], 1, 0, 1);
  EXPECT_LE(time_of(load), SteppedRemote::kRequestUs + 200'000) << "one deadline";
  EXPECT_TRUE(remote.holds(1, 0, 1));
  EXPECT_LE(time_of(store), 200'000u);
  EXPECT_TRUE(remote.loads(slots[3], 3, 2));
  EXPECT_EQ(remote.tier->statistics().copies_lost, 0u);
  EXPECT_EQ(remote.tier->statistics().reconnects, 1u);
}

TEST_F(SecondAddress, TheFirstIsUsedAgainWhenTheSecondFails) {
  remote.fabric.set_cut(NodeId{1}, 0, true);
  ASSERT_TRUE(remote.loads(slots[0], 0, 1));
  remote.fabric.set_cut(NodeId{1}, 0, false);
  remote.fabric.set_cut(NodeId{1}, kSecond, true);
  ASSERT_TRUE(remote.loads(slots[1], 1, 1));
  EXPECT_EQ(remote.tier->statistics().reconnects, 2u);
}

TEST_F(SecondAddress, WhileBothAreSilentALoadWaits) {
  remote.fabric.set_cut(NodeId{1}, 0, true);
  remote.fabric.set_cut(NodeId{1}, kSecond, true);
  const std::uint64_t load = remote.submit(tiers::Direction::load, slots[0], 1, 0, 1);
  remote.pass(10'000'000);
  EXPECT_EQ(remote.completion(load), nullptr);
  remote.fabric.set_cut(NodeId{1}, kSecond, false);
  EXPECT_LE(time_of(load), 5'000'000u) << "one attempt over the first one may be in flight";
  EXPECT_TRUE(remote.holds(1, 0, 1));
}

}  // namespace
}  // namespace vmem::rdma
