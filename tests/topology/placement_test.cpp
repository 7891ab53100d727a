// Placement gives the best of all answers.
#include "topology/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "topology/machines.hpp"

namespace vmem::topology {
namespace {

using testing::ElementsAre;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

NodeIndex device(const Topology& topology, int ordinal) { return *topology.find(NodeKind::device, ordinal); }
NodeIndex host(const Topology& topology, int number) { return *topology.find(NodeKind::host, number); }

int home_of(const Topology& topology, std::vector<int> devices) { return host_node(topology, devices).value_or(-1); }

TEST(Placement, PinsADevicesHostMemoryOnItsOwnNumaNode) {
  const Topology topology = two_numa_nodes();
  EXPECT_EQ(home_of(topology, {0}), 0);
  EXPECT_EQ(home_of(topology, {3}), 1);
}

TEST(Placement, PinsSharedHostMemoryWhereMostDevicesAreNear) {
  const Topology topology = two_numa_nodes();
  EXPECT_EQ(home_of(topology, {1, 2, 3}), 1);
  EXPECT_EQ(home_of(topology, {0, 1, 2, 3}), 0);  // a tie
}

TEST(Placement, KnowsTheNearestNodeWithoutRates) {
  Topology topology = two_numa_nodes();
  for (Link& link : topology.links) link.forward = link.backward = {};
  EXPECT_EQ(home_of(topology, {2}), 1);
}

// The copy measured from the other node was faster within measurement error.
TEST(Placement, NearRatesDoNotMoveADeviceFromItsNode) {
  Topology topology = two_numa_nodes();
  for (Link& link : topology.links)
    if (link.kind == LinkKind::socket) link.forward = link.backward = measured(100);
  topology.set_copy(host(topology, 1), device(topology, 2), measured(24.5));
  EXPECT_EQ(home_of(topology, {2}), 1);
}

TEST(Placement, NoNodeIsKnownWhereNoneIs) { EXPECT_EQ(home_of(Topology{}, {0}), -1); }

TEST(Placement, PrefersPeersByTheirNVLinks) {
  const Topology topology = uneven_nvlinks();
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(peers_by_rate(topology, 3), ElementsAre(2, 1, 0));
  const auto found = peers(topology, 0);
  EXPECT_TRUE(found[1].nvlink);
  EXPECT_FALSE(found[1].shares_host_path);
  EXPECT_FALSE(found[2].nvlink);
  EXPECT_TRUE(found[2].shares_host_path);
}

TEST(Placement, PeersAlikeAreTakenInTurn) {
  Topology topology = host_nodes(1, 0);
  const NodeIndex fabric = topology.add({NodeKind::nvlink_switch, 0, "", "", 0});
  for (int i = 0; i < 4; ++i) {
    const NodeIndex added = add_device(topology, *topology.find(NodeKind::root, 0), 55);
    // The rates differ by measurement error only.
    topology.links.push_back(join(added, fabric, LinkKind::nvlink, 390 + i));
  }
  allow_all_peers(topology);
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(peers_by_rate(topology, 2), ElementsAre(3, 0, 1));
}

TEST(Placement, LeavesOutPeersOutOfReach) {
  Topology topology = uneven_nvlinks();
  topology.peers[0][1].reachable = false;
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(2, 3));
  topology.peers.clear();
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre());
}

TEST(Placement, WithoutRatesTheDriversRankDecides) {
  Topology topology = host_nodes(1, 0);
  for (int i = 0; i < 3; ++i) add_device(topology, *topology.find(NodeKind::root, 0), 55);
  allow_all_peers(topology);
  for (Link& link : topology.links) link.forward = link.backward = {};
  topology.peers[0][1].rank = 1;
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(2, 1));
}

TEST(Placement, OrdersPeersOfRandomMachinesByTheirRates) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Topology topology = random_machine(random, 5);
    const auto found = peers(topology, 0);
    double best = kUnlimited;
    for (const Peer& peer : found) {
      EXPECT_TRUE(topology.peers[0][std::size_t(peer.device)].reachable);
      const double rate = peer.bytes_per_s.value_or(0);
      EXPECT_LE(rate, best / 0.95);
      best = std::min(best, rate);
    }
  }
}

std::vector<NodeIndex> memories(const std::vector<Place>& places) {
  std::vector<NodeIndex> result;
  for (const Place& place : places) result.push_back(place.memory);
  return result;
}

TEST(Placement, OrdersAllPlacesByRate) {
  Topology topology = uneven_nvlinks();
  const NodeIndex root = *topology.find(NodeKind::root, 0);
  const NodeIndex disk = topology.add({NodeKind::disk, 0, "nvme0n1", "", 0});
  topology.links.push_back(join(root, disk, LinkKind::pcie, 3));
  topology.set_copy(device(topology, 0), device(topology, 0), measured(4000));
  const auto places = places_by_rate(topology, 0);
  EXPECT_THAT(memories(places), ElementsAre(device(topology, 0), device(topology, 1), device(topology, 2),
                                            device(topology, 3), host(topology, 0), disk));
  EXPECT_EQ(places.front().bytes_per_s(), 4000 * GBps);
  EXPECT_EQ(places.back().bytes_per_s(), 3 * GBps);
}

TEST(Placement, ASlowPeerComesAfterHostMemory) {
  Topology topology = shared_switch();
  topology.set_copy(device(topology, 0), device(topology, 2), measured(6));
  EXPECT_THAT(memories(places_by_rate(topology, 0)),
              ElementsAre(device(topology, 0), device(topology, 1), host(topology, 0), device(topology, 2)));
}

TEST(Placement, AnUnknownRateLeavesTheOrderToTheKinds) {
  Topology topology = shared_switch();
  for (Link& link : topology.links) link.forward = link.backward = {};
  const NodeIndex disk = topology.add({NodeKind::disk, 0, "nvme0n1", "", 0});
  topology.links.push_back(join(*topology.find(NodeKind::root, 0), disk, LinkKind::pcie, 3));
  const auto places = places_by_rate(topology, 0);
  EXPECT_EQ(places[3].memory, host(topology, 0));
  EXPECT_EQ(places[4].memory, disk);
}

}  // namespace
}  // namespace vmem::topology
