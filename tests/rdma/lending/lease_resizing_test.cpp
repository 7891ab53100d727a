// Leases that change their size, as their lender sees them.
#include <algorithm>

#include "rdma/lending/one_room.hpp"

namespace vmem::rdma {
namespace {

// Leases of a lender of 16 MiB that change their size.
class Resized : public OneRoom {
 protected:
  explicit Resized(std::uint64_t bytes = kBytes) : OneRoom(nullptr, nullptr, bytes) {}
  wire::Lent ask_for(std::uint64_t node, std::uint64_t bytes, std::vector<Extent> returned = {}) {
    return ask(node, wire::Ask{{.memory = bytes}, std::move(returned)});
  }
  void wiped() {
    for (int i = 0; i < 100; ++i) host->step();
  }
};

TEST_F(Resized, WhoNeedsNothingYetHasALeaseAndHearsWhatThereIs) {
  connect(1);
  const wire::Lent lent = ask_for(1, 0);
  EXPECT_EQ(lent.answer, wire::Answer::done);
  EXPECT_NE(lent.lease, 0u);
  EXPECT_EQ(lent.bytes.sum(), 0u);
  EXPECT_EQ(lent.room.memory, kBytes);
}

class ResizedInHoles : public Resized {
 protected:
  static constexpr std::uint64_t kLarge = 64 * kMiB;
  ResizedInHoles() : Resized(kLarge) {}
};

// Else no message could say what it has.
TEST_F(ResizedInHoles, ALeaseNeverHasMoreExtentsThanAMessage) {
  connect(1);
  ASSERT_EQ(ask_for(1, kLarge).bytes.memory, kLarge);
  for (std::uint64_t hole = 1; hole < 2 * wire::kMostExtents + 4; hole += 2)
    ask_for(1, 0, {{hole * 2 * kMiB, 2 * kMiB}});
  wiped();
  const wire::Lent lent = ask_for(1, 0);
  EXPECT_EQ(lent.extents().size(), wire::kMostExtents);
  EXPECT_EQ(lent.bytes.memory, kLarge - (wire::kMostExtents - 1) * 2 * kMiB);
  EXPECT_EQ(lent.room.memory, (wire::kMostExtents - 1) * 2 * kMiB) << "behind what it has";
}

TEST_F(Resized, LeasesGrowBehindWhatTheyHaveAndBeginFarApart) {
  connect(1);
  connect(2);
  EXPECT_EQ(ask_for(1, 4 * kMiB).extents(), (std::vector<Extent>{{0, 4 * kMiB}}));
  EXPECT_EQ(ask_for(2, 2 * kMiB).extents(), (std::vector<Extent>{{8 * kMiB, 2 * kMiB}}));
  EXPECT_EQ(ask_for(1, 8 * kMiB).extents(), (std::vector<Extent>{{0, 8 * kMiB}}));
  EXPECT_EQ(ask_for(2, 4 * kMiB).extents(), (std::vector<Extent>{{8 * kMiB, 4 * kMiB}}));
  const wire::Lent all = ask_for(1, 64 * kMiB);
  EXPECT_EQ(all.extents(), (std::vector<Extent>{{0, 8 * kMiB}, {12 * kMiB, 4 * kMiB}}));
  EXPECT_EQ(all.room.memory, 0u);
  EXPECT_EQ(all.holder, 2u) << "who has the rest";
  EXPECT_EQ(ask_for(2, 16 * kMiB).bytes.memory, 4 * kMiB);
  EXPECT_EQ(ask_for(1, 0).bytes.memory, 12 * kMiB) << "only what is named is returned";
}

TEST_F(Resized, MemoryThatIsReturnedIsWipedAndLentAgain) {
  connect(1);
  ASSERT_EQ(ask_for(1, kBytes).bytes.memory, kBytes);
  std::ranges::fill(memory, std::byte{7});  // only what was written through the service is wiped
  EXPECT_EQ(ask_for(1, 4 * kMiB, {{4 * kMiB, 8 * kMiB}, {12 * kMiB, 4 * kMiB}}).bytes.memory, 4 * kMiB);
  wiped();
  connect(2);
  EXPECT_EQ(ask_again(2).bytes.memory, 12 * kMiB);
  EXPECT_EQ(service.statistics().lent.memory, kBytes);
}

TEST_F(Resized, WhatALeaseDoesNotHaveIsNotTakenFromIt) {
  connect(1);
  connect(2);
  ASSERT_EQ(ask_for(1, 4 * kMiB).bytes.memory, 4 * kMiB);
  ASSERT_EQ(ask_for(2, 4 * kMiB).bytes.memory, 4 * kMiB);
  EXPECT_EQ(ask_for(2, 0, {{0, 4 * kMiB}}).bytes.memory, 4 * kMiB) << "another's";
  EXPECT_EQ(ask_for(1, 0, {{2 * kMiB, 4 * kMiB}}).bytes.memory, 4 * kMiB) << "half of it is free";
  EXPECT_EQ(ask_for(1, 0, {{2 * kMiB, 2 * kMiB}}).extents(), (std::vector<Extent>{{0, 2 * kMiB}}));
}

// It was meant for another lender, or for what was there before.
TEST_F(Resized, AnAskForAnotherLeaseChangesNothing) {
  connect(1);
  const wire::Lent before = ask_for(1, 8 * kMiB);
  for (const std::uint64_t other : {std::uint64_t{0}, before.lease + 1}) {
    leases_[1] = other;
    const wire::Lent lent = ask_for(1, kBytes, {{0, 4 * kMiB}});
    EXPECT_EQ(lent.lease, before.lease) << "it hears what there is";
    EXPECT_EQ(lent.extents(), before.extents());
    EXPECT_EQ(lent.answer, wire::Answer::done);
  }
  leases_[1] = before.lease;
  EXPECT_EQ(ask_for(1, 0, {{0, 4 * kMiB}}).bytes.memory, 4 * kMiB);
}

TEST_F(Resized, WhoNamesALeaseThatLapsedIsToldSoAndAsksForANewOne) {
  connect(1);
  const wire::Lent before = ask_for(1, 8 * kMiB);
  leave(1);
  clock.advance(100'000'000);
  wiped();
  connect(1);
  const wire::Lent told = ask_for(1, 8 * kMiB);
  EXPECT_EQ(told.answer, wire::Answer::unknown);
  EXPECT_EQ(told.lease, 0u);
  EXPECT_EQ(service.statistics().clients, 0u);
  EXPECT_EQ(ask_for(1, 8 * kMiB).bytes.memory, 8 * kMiB);
  EXPECT_NE(leases_[1], before.lease);
}

class OvertakenAsk : public Resized {
 protected:
  // The lender's answer; nullopt: none.
  std::optional<wire::Lent> says(std::uint64_t sequence, const wire::Ask& ask, PeerId over = PeerId{1}) {
    const std::size_t before = transport.sent.size();
    transport.says(over, {1, Epoch{1}, sequence}, wire::Kind::allocate, wire::encode(ask));
    host->step();
    return transport.sent.size() == before ? std::nullopt : std::optional(last_lent(transport));
  }
};

TEST_F(OvertakenAsk, ChangesNothing) {
  connect(1);
  const std::uint64_t lease = ask_for(1, kBytes).lease;
  const wire::Ask early{{.memory = 4 * kMiB}, {{4 * kMiB, 12 * kMiB}}, lease};
  EXPECT_EQ(says(100, early)->bytes.memory, 4 * kMiB);
  wiped();
  EXPECT_EQ(says(101, {{.memory = kBytes}, {}, lease})->bytes.memory, kBytes);
  for (const std::uint64_t late : {99u, 100u, 101u}) EXPECT_FALSE(says(late, early));
  EXPECT_EQ(service.statistics().lent.memory, kBytes);
  EXPECT_EQ(says(102, early)->bytes.memory, 4 * kMiB);
}

TEST_F(OvertakenAsk, AReturnOfAllThatItHasOvertakenEndsNothing) {
  connect(1);
  const std::uint64_t lease = ask_for(1, kBytes).lease;
  EXPECT_TRUE(says(100, {{.memory = kBytes}, {}, lease}));
  const wire::PageAt all{.lease = lease};
  for (const std::uint64_t sequence : {99u, 101u}) {
    EXPECT_EQ(service.statistics().clients, 1u);
    transport.says(PeerId{1}, {1, Epoch{1}, sequence}, wire::Kind::release, wire::body_of(all));
    host->step();
  }
  EXPECT_EQ(service.statistics().clients, 0u);
}

// One for another lease was meant for another lender.
TEST_F(OvertakenAsk, OneForAnotherLeaseOvertakesNone) {
  connect(1);
  const std::uint64_t lease = ask_for(1, kBytes).lease;
  EXPECT_TRUE(says(101, {{.memory = kBytes}, {}, lease + 1}));
  EXPECT_TRUE(says(100, {{.memory = kBytes}, {}, lease}));
}

// The pages of a node that is connected are kept.
TEST_F(OvertakenAsk, LeavesTheLeaseWithTheConnectionOfTheLaterOne) {
  connect(1);
  const std::uint64_t lease = ask_for(1, kBytes).lease;
  transport.connected(PeerId{11}, NodeId{1});
  connected_.push_back(PeerId{11});
  EXPECT_TRUE(says(101, {{.memory = kBytes}, {}, lease}, PeerId{11}));
  EXPECT_FALSE(says(100, {{.memory = kBytes}, {}, lease}, PeerId{1}));
  leave(1);
  clock.advance(100'000'000);
  wiped();
  EXPECT_EQ(service.statistics().clients, 1u);
}

TEST_F(Resized, AnotherHasNoMoreThanTheLimitForOneNode) {
  service.stop();
  MemoryService limited{{.clock = &clock, .memory = memory, .client_bytes = 6 * kMiB}};
  ASSERT_TRUE(limited.start(*host));
  connect(1);
  EXPECT_EQ(ask_for(1, 4 * kMiB).room.memory, 2 * kMiB);
  EXPECT_EQ(ask_for(1, kBytes).bytes.memory, 6 * kMiB);
  transport.on_progress = [&] {
    for (const PeerId each : connected_) transport.gone(each);
    connected_.clear();
  };
  limited.stop();
}

TEST_F(Resized, ALenderThatDrainsGrantsNoMoreAndTakesBack) {
  connect(1);
  ASSERT_EQ(ask_for(1, 4 * kMiB).bytes.memory, 4 * kMiB);
  service.set_draining(true);
  EXPECT_EQ(ask_for(1, 8 * kMiB).bytes.memory, 4 * kMiB);
  EXPECT_EQ(last_lent(transport).room.memory, 0u);
  EXPECT_EQ(ask_for(1, 0, {{0, 2 * kMiB}}).bytes.memory, 2 * kMiB);
}

}  // namespace
}  // namespace vmem::rdma
