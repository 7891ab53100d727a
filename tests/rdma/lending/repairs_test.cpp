// Copies between lenders in the background: of lost copies, and away from lenders that drain.
#include <gmock/gmock.h>

#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Direction;
using tiers::Outcome;
using tiers::SlotId;

class Repairs : public ::testing::TestWithParam<PageAead::Mode> {
 protected:
  static constexpr std::uint64_t kPages = 6;

  // Lenders by name, which all have room for eight pages.
  void begin(std::size_t count, std::uint32_t replicas, std::uint64_t drain_bytes = 32 * kPage) {
    remote = std::make_unique<SteppedRemote>(0, replicas);
    remote->drain_bytes = drain_bytes;
    remote->protection = GetParam();
    remote->start_tier();
    for (std::uint64_t id = 1; id <= count; ++id) join(id);
    follow();
    remote->until([&] { return remote->connected() == count && remote->tier->usage().ready_bytes > 0; });
    rest();
  }
  // So that the next change is acted on at once.
  void rest() { remote->pass(2'000'000); }
  void join(std::uint64_t id) {
    remote->lenders.emplace_back();
    remote->start_lender(id);
    named.push_back({.name = id, .addresses = {node_address(id)}});
  }
  void follow() { remote->tier->follow(named); }
  void drain(std::uint64_t id, bool drains = true, std::uint64_t rate = 0) {
    named[id - 1].drains = drains;
    named[id - 1].drain_rate = rate;
    follow();
  }
  void store_all(std::uint64_t pages = kPages) {
    for (std::uint64_t page = slots.size(); page < pages; ++page) {
      slots.push_back(remote->slot());
      ASSERT_EQ(remote->store(slots[page], page, 1).outcome, Outcome::done);
    }
  }
  void expect_all_readable() {
    for (std::uint64_t page = 0; page < slots.size(); ++page) EXPECT_TRUE(remote->loads(slots[page], page, 1)) << page;
  }
  ServiceStatistics at(std::uint64_t id) const { return remote->lenders[id - 1]->service->statistics(); }
  bool is_drained(std::uint64_t id) const { return at(id).pages == 0 && at(id).lent.memory == 0; }

  std::unique_ptr<SteppedRemote> remote;
  std::vector<NamedLender> named;
  std::vector<SlotId> slots;
};

TEST_P(Repairs, PagesLeaveALenderThatDrainsAndSoDoesItsLease) {
  begin(2, 1);
  store_all();
  const std::uint64_t before = at(1).pages;
  ASSERT_GT(before, 0u);
  drain(1);
  remote->until([&] { return is_drained(1); });
  EXPECT_EQ(at(2).pages, kPages);
  EXPECT_EQ(remote->tier->statistics().repaired_bytes, before * kPage);
  EXPECT_EQ(remote->tier->statistics().copies_lost, 0u);
  EXPECT_EQ(remote->tier->usage().budget_bytes, SteppedRemote::kLenderBytes);
  expect_all_readable();
  remote->pass(2'000'000);
  EXPECT_TRUE(is_drained(1)) << "it is asked for no other lease";
}

TEST_P(Repairs, ALenderThatDrainsNoMoreIsUsedAgain) {
  begin(2, 1);
  store_all();
  drain(1);
  remote->until([&] { return is_drained(1); });
  drain(1, false);
  remote->until([&] { return remote->tier->usage().budget_bytes == 2 * SteppedRemote::kLenderBytes; });
  store_all(12);
  EXPECT_GT(at(1).pages, 0u);
  expect_all_readable();
}

TEST_P(Repairs, ADrainKeepsItsRate) {
  begin(2, 1);
  store_all();
  const std::uint64_t pages = at(1).pages;
  const std::uint64_t began_us = remote->clock.now_us();
  drain(1, true, kPage);  // one page a second
  remote->until([&] { return is_drained(1); });
  const std::uint64_t took_us = remote->clock.now_us() - began_us;
  EXPECT_GE(took_us, (pages - 1) * 900'000);
  EXPECT_LE(took_us, pages * 1'500'000);
}

// What leaves is fetched, and the lender that is to take it does not answer.
TEST_P(Repairs, ADrainHasSoManyBytesOnTheirWay) {
  begin(1, 1, 5 * kPage);
  store_all(8);
  join(2);
  follow();
  remote->until([&] { return remote->tier->usage().budget_bytes == 2 * SteppedRemote::kLenderBytes; });
  const std::uint64_t fetched = at(1).fetched_bytes;
  std::unique_ptr<Lender> silent = std::move(remote->lenders[1]);
  drain(1, true, 1000 * kPage);
  remote->pass(SteppedRemote::kRequestUs / 2);
  EXPECT_EQ(at(1).fetched_bytes - fetched, 5 * kPage);
  remote->lenders[1] = std::move(silent);
  remote->until([&] { return is_drained(1); });
  expect_all_readable();
}

TEST_P(Repairs, WithoutRoomElsewherePagesStayUntilThereIsSome) {
  begin(2, 1);
  store_all(16);
  drain(1);
  remote->pass(3'000'000);
  EXPECT_EQ(at(1).pages, 8u);
  expect_all_readable();
  join(3);
  follow();
  remote->until([&] { return is_drained(1); });
  expect_all_readable();
}

// All pages are moving when new versions of them are stored.
TEST_P(Repairs, AStoreDuringAMoveWins) {
  constexpr std::uint64_t kMoving = 4;
  for (std::uint64_t turns = 0; turns < 40; ++turns) {
    named.clear();
    slots.clear();
    begin(1, 1);
    store_all(kMoving);
    join(2);
    follow();
    remote->until([&] { return remote->tier->usage().budget_bytes == 2 * SteppedRemote::kLenderBytes; });
    rest();
    drain(1);
    for (std::uint64_t i = 0; i < turns; ++i) {
      remote->turn();
      remote->clock.advance(10);
    }
    std::vector<std::uint64_t> stores;
    for (std::uint64_t page = 0; page < kMoving; ++page) {
      remote->fill(page, page, 2);
      stores.push_back(remote->submit(Direction::store, slots[page], page, page, 2));
    }
    for (const std::uint64_t id : stores) ASSERT_EQ(remote->wait_for(id).outcome, Outcome::done);
    remote->until([&] { return is_drained(1); });
    for (std::uint64_t page = 0; page < kMoving; ++page)
      ASSERT_TRUE(remote->loads(slots[page], page, 2)) << page << " after " << turns;
    ASSERT_EQ(at(2).pages, kMoving) << turns;
  }
}

// The page has left the copy that the load began with before its answer is known to be lost.
TEST_P(Repairs, ALoadWithoutAnAnswerFindsThePageWhereItWentMeanwhile) {
  begin(1, 2);
  store_all(1);
  remote->lenders[0]->faults->set_faults({.drop = 1});
  const std::uint64_t load = remote->submit(Direction::load, slots[0], 1, 0, 1);
  remote->until([&] { return remote->lenders[0]->faults->counts().dropped != 0; });
  remote->lenders[0]->faults->set_faults({});
  join(2);
  drain(1);
  remote->until([&] { return at(2).pages == 1 && at(1).pages == 0; });
  const auto loaded = remote->wait_for(load);
  EXPECT_EQ(loaded.outcome, Outcome::done) << loaded.error.message;
  EXPECT_TRUE(remote->holds(1, 0, 1));
}

TEST_P(Repairs, ASlotReleasedDuringAMoveLeavesNothingBehind) {
  for (std::uint64_t turns = 0; turns < 40; ++turns) {
    named.clear();
    slots.clear();
    begin(2, 1);
    store_all();
    drain(1);
    for (std::uint64_t i = 0; i < turns; ++i) {
      remote->turn();
      remote->clock.advance(10);
    }
    for (const SlotId slot : slots) remote->tier->release(slot);
    remote->until([&] { return is_drained(1); });
    remote->pass(1'000'000);
    ASSERT_EQ(at(2).pages, 0u) << turns;
    ASSERT_EQ(remote->tier->usage().ready_bytes, SteppedRemote::kLenderBytes) << turns;
  }
}

TEST_P(Repairs, LoadsDuringADrainFindTheirPages) {
  for (std::uint64_t turns = 0; turns < 40; ++turns) {
    named.clear();
    slots.clear();
    begin(2, 1);
    store_all();
    drain(1);
    for (std::uint64_t i = 0; i < turns; ++i) {
      remote->turn();
      remote->clock.advance(10);
    }
    expect_all_readable();
    remote->until([&] { return is_drained(1); });
  }
}

TEST_P(Repairs, ALostCopyIsMadeAgainByItself) {
  begin(3, 2);
  store_all();
  const std::uint64_t lost = at(1).pages;
  ASSERT_GT(lost, 0u);
  named.erase(named.begin());
  follow();
  remote->lenders[0].reset();
  remote->until([&] { return remote->tier->statistics().repaired_bytes == lost * kPage; });
  EXPECT_EQ(remote->tier->statistics().copies_lost, lost);
  EXPECT_EQ(at(2).pages + at(3).pages, 2 * kPages);
  named.erase(named.begin());  // another one: the new copies are as good
  follow();
  remote->turn();
  expect_all_readable();
}

TEST_P(Repairs, SinglePagesGetASecondCopyWhenANodeJoins) {
  begin(1, 2);
  store_all();
  join(2);
  follow();
  remote->until([&] { return at(2).pages == kPages; });
  expect_all_readable();
}

TEST_P(Repairs, WithOneOtherNodeADrainLeavesSingleCopies) {
  begin(2, 2);
  store_all();
  drain(1);
  remote->until([&] { return is_drained(1); });
  EXPECT_EQ(at(2).pages, kPages);
  expect_all_readable();
}

TEST_P(Repairs, ATargetThatDiesLeavesTheOldCopy) {
  begin(3, 1);
  store_all();
  const std::uint64_t before = at(1).pages;
  ASSERT_GT(before, 0u);
  drain(1, true, 2 * kPage);
  remote->pass(600'000);
  remote->lenders[1].reset();  // killed
  named[1].addresses = {};
  std::vector<NamedLender> left{named[0], named[2]};
  remote->tier->follow(left);
  remote->until([&] { return is_drained(1); });
  std::uint64_t lost = 0;
  for (std::uint64_t page = 0; page < kPages; ++page) {
    const auto loaded = remote->load(slots[page], page, 1);
    lost += loaded.outcome == Outcome::lost ? 1 : 0;
  }
  EXPECT_EQ(lost, remote->tier->statistics().copies_lost) << "only what had arrived there is lost";
  EXPECT_EQ(at(3).pages, kPages - lost);
}

TEST_P(Repairs, ADrainingLenderGrantsNoNewLease) {
  begin(2, 1);
  remote->lenders[0]->service->set_draining(true);
  store_all();
  EXPECT_GT(at(1).lent.memory, 0u) << "those that it has granted stay";
  remote->tier->follow({named[1]});
  remote->until([&] { return at(1).lent.memory == 0; });
  remote->tier->follow(named);
  remote->pass(3'000'000);
  EXPECT_EQ(at(1).lent.memory, 0u);
  remote->lenders[0]->service->set_draining(false);
  remote->until([&] { return at(1).lent.memory != 0; });
}

INSTANTIATE_TEST_SUITE_P(Modes, Repairs, ::testing::Values(PageAead::Mode::authenticate, PageAead::Mode::encrypt),
                         [](const auto& mode) {
                           return mode.param == PageAead::Mode::encrypt ? "encrypted" : "authenticated";
                         });

}  // namespace
}  // namespace vmem::rdma
