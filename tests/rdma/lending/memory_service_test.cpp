// A lender's handling of its connections, over a transport with scripted peers.
#include "rdma/lending/memory_service/memory_service.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "rdma/lending/one_room.hpp"
#include "rdma/lending/scripted_disk.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;

constexpr PeerId kFirst{1}, kSecond{2};

class Lending : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(service.start(*host)); }
  ManualClock clock;
  ScriptedTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  ScriptedTransport& transport = *made;
  MemoryService service{{.clock = &clock}};
};

TEST_F(Lending, WhoConnectsWhileItStopsIsSentAwayAndNotWaitedFor) {
  transport.connected(kFirst, NodeId{7});
  host->step();
  int turns = 0;
  transport.on_progress = [&] {
    if (++turns == 1) transport.connected(kSecond, NodeId{8});
    if (turns == 3) transport.gone(kFirst);
    if (turns == 1000) transport.gone(kSecond);  // limits a failing test
  };
  service.stop();
  EXPECT_EQ(turns, 3);
  EXPECT_THAT(transport.closed, ElementsAre(kFirst, kSecond));
}

TEST_F(Lending, AnotherTenantDoesNotTakeANodesPlace) {
  transport.connected(kFirst, NodeId{7}, nullptr, "team-a");
  host->step();
  transport.connected(kSecond, NodeId{7}, nullptr, "team-b");
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(kSecond));
  transport.gone(kFirst);
  host->step();
}

TEST_F(Lending, WhoIsRefusedAgainAndAgainDoesNotFillTheLog) {
  transport.connected(kFirst, NodeId{7}, nullptr, "team-a");
  host->step();
  testing::internal::CaptureStderr();
  for (std::uint64_t peer = 10; peer < 1010; ++peer) {
    transport.connected(PeerId{peer}, NodeId{7}, nullptr, "team-b");
    host->step();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(service.statistics().rejected, 1000u);
  EXPECT_EQ(std::ranges::count(log, '\n'), 10) << log;
  transport.gone(kFirst);
  host->step();
}

TEST_F(Lending, TheSameTenantTakesItsOwnPlaceAgain) {
  transport.connected(kFirst, NodeId{7}, nullptr, "team-a");
  host->step();
  transport.connected(kSecond, NodeId{7}, nullptr, "team-a");
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  transport.gone(kSecond);
  host->step();
}

TEST_F(Lending, WhoIsSilentIsClosedOnce) {
  transport.connected(kFirst, NodeId{7});
  host->step();
  clock.advance(61'000'000);
  EXPECT_FALSE(host->step());
  EXPECT_FALSE(host->step());
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  host->step();
}

TEST_F(Lending, ANodesNewConnectionTakesThePlaceOfItsOldOne) {
  transport.connected(kFirst, NodeId{7});
  transport.connected(kSecond, NodeId{7});
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  host->step();
  transport.on_progress = [&] { transport.gone(kSecond); };
  service.stop();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst, kSecond));
}

// A simulated process that the test can end, and the descriptor that becomes readable then.
struct ProcessEnd {
  ProcessEnd() {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    process = std::make_shared<const FileDescriptor>(ends[0]);
    alive = FileDescriptor(ends[1]);
  }
  void end() { (void)!::write(alive.get(), "x", 1); }
  ProcessRef process;
  FileDescriptor alive;
};

TEST_F(OneRoom, TheRoomOfAProcessThatEndedIsFreeAtOnce) {
  ProcessEnd first;
  connect(1, first.process);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  leave(1);
  connect(2);
  EXPECT_EQ(ask(2).answer, wire::Answer::full) << "a connection that breaks proves nothing";
  first.end();
  EXPECT_EQ(ask_again(2).bytes.memory, kBytes);
}

TEST_F(OneRoom, WhoAsksWhileRoomIsBeingWipedIsToldToAskAgainAtEveryTickOfTheClock) {
  clock.each_look_us = 1;
  ProcessEnd first;
  connect(1, first.process);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  first.end();
  connect(2);
  EXPECT_EQ(ask(2).answer, wire::Answer::again);
  EXPECT_EQ(ask_again(2).bytes.memory, kBytes);
}

TEST_F(OneRoom, AProcessThatEndedLosesItsRoomThoughAForkedChildKeepsItsConnection) {
  ProcessEnd first;
  connect(1, first.process);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  first.end();
  connect(2);
  EXPECT_EQ(ask_again(2).bytes.memory, kBytes);
  EXPECT_THAT(transport.closed, ElementsAre(PeerId{1}));
}

TEST_F(OneRoom, AReportedEndFreesTheRoomAndWhatTheNodeSentBeforeComesToNothing) {
  connect(1);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  leave(1);
  connect(2);
  transport.says(PeerId{2}, NodeId{2}, wire::Kind::end, wire::End{1, 1});
  host->step();
  EXPECT_EQ(wire::parse(transport.sent.back().header)->header.kind, wire::Kind::ended);
  EXPECT_EQ(ask_again(2).bytes.memory, kBytes);
  transport.connected(PeerId{3}, NodeId{1});
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(PeerId{3})) << "it was on its way when its process ended";
}

TEST_F(OneRoom, AReportOfAnotherIncarnationEndsNothing) {
  connect(1);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  connect(2);
  transport.says(PeerId{2}, NodeId{2}, wire::Kind::end, wire::End{1, 0});
  host->step();
  EXPECT_EQ(ask(2).answer, wire::Answer::full);
}

TEST_F(OneRoom, WhoIsRefusedHearsWhoHasTheRoom) {
  connect(1);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  connect(2);
  wire::Lent refused = ask(2);
  EXPECT_EQ(refused.answer, wire::Answer::full);
  EXPECT_EQ(refused.lendable_bytes, kBytes);
  EXPECT_EQ(refused.leased_bytes, kBytes);
  EXPECT_EQ(refused.holder, 1u);
  EXPECT_EQ(refused.holder_left_us, 0u);
  leave(1);
  clock.advance(20'000'000);
  refused = ask(2);
  EXPECT_EQ(refused.holder_left_us, 40'000'000u);
}

TEST_F(OneRoom, RefusedNodesLeaveNothingBehind) {
  connect(1);
  EXPECT_EQ(ask(1).bytes.memory, kBytes);
  const std::size_t files = std::size_t(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
  for (std::uint64_t node = 2; node < 2000; ++node) {
    ProcessEnd other;
    connect(node, other.process);
    EXPECT_EQ(ask(node).answer, wire::Answer::full);
    leave(node);
  }
  EXPECT_EQ(service.statistics().remembered, 1u);
  EXPECT_EQ(service.statistics().clients, 1u);
  EXPECT_EQ(std::size_t(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {})), files);
}

// A node that lends 16 MiB of memory and 64 MiB of a disk.
class DiskRoom : public OneRoom {
 protected:
  static constexpr std::uint64_t kDiskBytes = std::uint64_t{64} << 20;
  static constexpr std::uint64_t kLook = 5'000;
  DiskRoom() : OneRoom(&disk) {}
  std::uint64_t told() { return last_lent(transport).bytes.disk; }
  ScriptedDisk disk{kDiskBytes};
};

TEST_F(DiskRoom, ABorrowerIsToldWhenTheDiskGoesOutOfService) {
  connect(1);
  const wire::Lent before = ask(1);
  EXPECT_EQ(before.bytes.disk, kDiskBytes);
  disk.left = 0;
  clock.advance(kLook);
  host->step();
  const wire::Lent after = last_lent(transport);
  EXPECT_EQ(after.lease, before.lease) << "what is there may still be read";
  EXPECT_EQ(after.bytes.memory, before.bytes.memory);
  EXPECT_EQ(after.bytes.disk, 0u);
  EXPECT_EQ(service.statistics().lent.disk, 0u);
  const std::size_t sent = transport.sent.size();
  clock.advance(kLook);
  host->step();
  EXPECT_EQ(transport.sent.size(), sent) << "once";
}

TEST_F(DiskRoom, WhoWasAwayWhenTheDiskFailedHearsOfItWhenItIsBack) {
  connect(1);
  (void)ask(1);
  leave(1);
  disk.left = kDiskBytes / 2;
  clock.advance(kLook);
  host->step();
  connect(1);
  EXPECT_EQ(ask(1).bytes.disk, kDiskBytes / 2);
}

TEST_F(DiskRoom, NoNewLeaseGetsRoomOfADiskThatIsOutOfService) {
  disk.left = 0;
  connect(1);
  const wire::Lent lent = ask(1);
  EXPECT_EQ(lent.answer, wire::Answer::done);
  EXPECT_EQ(lent.bytes.memory, kBytes);
  EXPECT_EQ(lent.bytes.disk, 0u);
}

TEST_F(DiskRoom, RoomOfALeaseThatEndsIsGivenAgainOnlyAsFarAsItIsThere) {
  ProcessEnd first;
  connect(1, first.process);
  EXPECT_EQ(ask(1).bytes.disk, kDiskBytes);
  disk.left = kDiskBytes / 4;
  first.end();
  connect(2);
  EXPECT_EQ(ask_again(2).bytes.disk, kDiskBytes / 4);
  EXPECT_EQ(service.statistics().lent.disk, kDiskBytes / 4);
}

// A node that lends 16 MiB of memory and 64 MiB of HBM.
class HbmRoom : public OneRoom {
 protected:
  static constexpr std::uint64_t kHbmBytes = 64 * kMiB;
  HbmRoom() : OneRoom(nullptr, &hbm) {}
  wire::MediumBytes told() { return last_lent(transport).bytes; }
  void lend(std::uint64_t bytes) {
    hbm.left = bytes;
    clock.advance(5'000);
    host->step();
  }
  ScriptedDisk hbm{kHbmBytes};
};

TEST_F(HbmRoom, ABorrowerIsToldWhatItMayUseWhileTheOwnerLendsLessAndMoreAgain) {
  connect(1);
  const wire::Lent before = ask(1);
  EXPECT_EQ(before.bytes, (wire::MediumBytes{.memory = kBytes, .hbm = kHbmBytes}));
  lend(10 * kMiB);
  EXPECT_EQ(last_lent(transport).lease, before.lease);
  EXPECT_EQ(told(), (wire::MediumBytes{.memory = kBytes, .hbm = 10 * kMiB}));
  EXPECT_EQ(service.statistics().lent.hbm, 10 * kMiB);
  lend(kHbmBytes);
  EXPECT_EQ(told().hbm, kHbmBytes);
  lend(2 * kHbmBytes);
  EXPECT_EQ(told().hbm, kHbmBytes) << "not more than it was granted";
}

TEST_F(HbmRoom, ALeaseThatWasGrantedWhileLessWasLentGrowsAndTakesNothingOfOthers) {
  lend(16 * kMiB);
  connect(1);
  ask(1, wire::Ask{{.hbm = 40 * kMiB}});
  EXPECT_EQ(told().hbm, 16 * kMiB);
  connect(2);
  EXPECT_EQ(ask(2).bytes, (wire::MediumBytes{.memory = kBytes})) << "all that there is, is leased";
  lend(48 * kMiB);
  EXPECT_EQ(told().hbm, 8 * kMiB) << "node 1 has 40 MiB, as it asked for";
  lend(kHbmBytes);
  EXPECT_EQ(told().hbm, 24 * kMiB);
  EXPECT_EQ(service.statistics().lent.hbm, kHbmBytes);
}

TEST_F(HbmRoom, AllLeasesShrinkInProportionAndAreNeverLargerThanWhatIsThere) {
  connect(1);
  ask(1, wire::Ask{{.hbm = 48 * kMiB}});
  EXPECT_EQ(told(), (wire::MediumBytes{.hbm = 48 * kMiB}));
  connect(2);
  EXPECT_EQ(ask(2).bytes, (wire::MediumBytes{.memory = kBytes, .hbm = 16 * kMiB}));
  for (const std::uint64_t left : {32u, 30u, 14u, 2u, 0u, 64u}) {
    lend(left * kMiB);
    EXPECT_LE(service.statistics().lent.hbm, left * kMiB);
    EXPECT_GE(service.statistics().lent.hbm + 2 * kMiB, left * kMiB);
  }
  EXPECT_EQ(told().hbm, 16 * kMiB);
}

TEST_F(HbmRoom, OfHbmALeaseHasWhatWasAskedForLast) {
  connect(1);
  const auto ask_hbm = [&](std::uint64_t bytes) { return ask(1, wire::Ask{{.hbm = bytes}}); };
  EXPECT_EQ(ask_hbm(8 * kMiB).bytes.hbm, 8 * kMiB);
  EXPECT_EQ(ask_hbm(40 * kMiB).bytes.hbm, 40 * kMiB);
  EXPECT_EQ(ask_hbm(16 * kMiB).bytes.hbm, 16 * kMiB);
  EXPECT_EQ(last_lent(transport).room.hbm, kHbmBytes - 16 * kMiB);
  EXPECT_EQ(service.statistics().lent.hbm, 16 * kMiB);
}

}  // namespace
}  // namespace vmem::rdma
