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
    transport.says(PeerId{node}, NodeId{node}, wire::Kind::allocate,
                   wire::encode(wire::Ask{{.memory = bytes}, std::move(returned)}));
    host->step();
    return last_lent(transport);
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
