// What placement is told is the best of all answers.
#include "topology/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "topology/machines.hpp"

namespace vmem::topology {
namespace {

using testing::ElementsAre;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

NodeId device(const Topology& topology, int ordinal) { return *topology.find(NodeKind::device, ordinal); }
NodeId host(const Topology& topology, int number) { return *topology.find(NodeKind::host, number); }

int home_of(const Topology& topology, std::vector<int> devices) { return host_node(topology, devices).value_or(-1); }

TEST(Placement, PinsADevicesHostMemoryOnItsOwnNumaNode) {
  const Topology topology = two_numa_nodes();
  EXPECT_EQ(home_of(topology, {0}), 0);
  EXPECT_EQ(home_of(topology, {3}), 1);
}

TEST(Placement, PinsSharedHostMemoryWhereMostDevicesAreNear) {
  const Topology topology = two_numa_nodes();
  EXPECT_EQ(home_of(topology, {1, 2, 3}), 1);
  EXPECT_EQ(home_of(topology, {0, 1, 2, 3}), 0);  // both alike
}

TEST(Placement, KnowsTheNearestNodeWithoutRates) {
  Topology topology = two_numa_nodes();
  for (Link& link : topology.links) link.forward = link.backward = {};
  EXPECT_EQ(home_of(topology, {2}), 1);
}

// Measured from the other node the copy was faster by what measurements differ by.
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
  const NodeId fabric = topology.add({NodeKind::nvlink_switch, 0, "", "", 0});
  for (int i = 0; i < 4; ++i) {
    const NodeId added = add_device(topology, *topology.find(NodeKind::root, 0), 55);
    topology.links.push_back(join(added, fabric, LinkKind::nvlink, 390 + i));  // as much as measurements differ
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

std::vector<NodeId> memories(const std::vector<Place>& places) {
  std::vector<NodeId> result;
  for (const Place& place : places) result.push_back(place.memory);
  return result;
}

TEST(Placement, OrdersAllPlacesByRate) {
  Topology topology = uneven_nvlinks();
  const NodeId root = *topology.find(NodeKind::root, 0);
  const NodeId disk = topology.add({NodeKind::disk, 0, "nvme0n1", "", 0});
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
  const NodeId disk = topology.add({NodeKind::disk, 0, "nvme0n1", "", 0});
  topology.links.push_back(join(*topology.find(NodeKind::root, 0), disk, LinkKind::pcie, 3));
  const auto places = places_by_rate(topology, 0);
  EXPECT_EQ(places[3].memory, host(topology, 0));
  EXPECT_EQ(places[4].memory, disk);
}

// ---- overflows at the same time ----

struct Value {
  double slowest = kUnlimited, sum = 0;
};

// The rates that these choices give, counted anew.
Value worth(const Topology& topology, std::span<const Overflow> overflows, const std::vector<std::size_t>& choice) {
  std::vector<Path> paths;
  for (std::size_t i = 0; i < overflows.size(); ++i) {
    const NodeId from = device(topology, overflows[i].device), to = overflows[i].places[choice[i]];
    paths.push_back(*best_path(topology, from, to));
    paths.push_back(*best_path(topology, to, from));
  }
  Value value;
  for (std::size_t i = 0; i < paths.size(); i += 2) {
    double rate = kUnlimited;
    for (std::size_t own = i; own < i + 2; ++own) {
      Load others;
      for (std::size_t j = 0; j < paths.size(); ++j)
        if (j != own) others.add(paths[j]);
      rate = std::min(rate, path_rate(topology, paths[own], others).value_or(kUnlimited));
    }
    value.slowest = std::min(value.slowest, rate);
    value.sum += rate;
  }
  return value;
}

Value best_of_all(const Topology& topology, std::span<const Overflow> overflows) {
  Value best{-1, -1};
  std::vector<std::size_t> choice(overflows.size(), 0);
  for (bool more = true; more;) {
    const Value value = worth(topology, overflows, choice);
    if (value.slowest > best.slowest || (value.slowest == best.slowest && value.sum > best.sum)) best = value;
    more = false;
    for (std::size_t i = 0; i < choice.size() && !more; ++i) {
      more = ++choice[i] < overflows[i].places.size();
      if (!more) choice[i] = 0;
    }
  }
  return best;
}

TEST(Placement, OverflowsOfRandomMachinesGoWhereTryingAllPutsThem) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Topology topology = random_machine(random, 4);
    std::vector<Overflow> overflows;
    for (int i = 0; i < int(1 + random() % 3); ++i) {
      Overflow& overflow = overflows.emplace_back(Overflow{i, topology.all(NodeKind::host)});
      for (int peer = 0; peer < 4; ++peer)
        if (peer != i && random() % 2 == 0) overflow.places.push_back(device(topology, peer));
    }
    const Assignment chosen = choose_places(topology, overflows);
    const Value best = best_of_all(topology, overflows);
    EXPECT_TRUE(chosen.exact);
    EXPECT_EQ(chosen.slowest_bytes_per_s, best.slowest);
    if (best.sum < kUnlimited) {
      EXPECT_NEAR(chosen.sum_bytes_per_s, best.sum, best.sum * 1e-9);
    }
  }
}

TEST(Placement, ASharedSwitchSendsOneOfTwoOverflowsElsewhere) {
  Topology topology = shared_switch();
  topology.links.push_back(join(device(topology, 1), device(topology, 2), LinkKind::nvlink, 40));
  const std::vector<Overflow> overflows = {{0, {host(topology, 0), device(topology, 2)}},
                                           {1, {host(topology, 0), device(topology, 2)}}};
  const Assignment chosen = choose_places(topology, overflows);
  EXPECT_THAT(chosen.places, ElementsAre(host(topology, 0), device(topology, 2)));
  EXPECT_EQ(chosen.slowest_bytes_per_s, 25 * GBps);
}

TEST(Placement, AnOverflowWithoutAPlaceHasNone) {
  const Topology topology = shared_switch();
  const std::vector<Overflow> overflows = {{0, {}}, {9, {host(topology, 0)}}, {1, {host(topology, 0)}}};
  EXPECT_THAT(choose_places(topology, overflows).places, ElementsAre(std::nullopt, std::nullopt, host(topology, 0)));
}

TEST(Placement, ALargeMachineIsAnsweredToo) {
  Topology topology = host_nodes(2, 100);
  const NodeId fabric = topology.add({NodeKind::nvlink_switch, 0, "", "", 0});
  for (int i = 0; i < 16; ++i) {
    const NodeId added = add_device(topology, *topology.find(NodeKind::root, i / 8), 55);
    topology.links.push_back(join(added, fabric, LinkKind::nvlink, 400));
  }
  allow_all_peers(topology);
  std::vector<Overflow> overflows;
  for (int i = 0; i < 16; ++i) {
    Overflow& overflow = overflows.emplace_back(Overflow{i, topology.all(NodeKind::host)});
    for (int peer = 0; peer < 16; ++peer)
      if (peer != i) overflow.places.push_back(device(topology, peer));
  }
  // Each takes another's: half of its NVLinks for its own pages, half for the other's.
  EXPECT_GE(choose_places(topology, overflows).slowest_bytes_per_s, 100 * GBps);
}

}  // namespace
}  // namespace vmem::topology
