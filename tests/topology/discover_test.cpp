// Emulated machines are discovered as they were described, through what a driver and NVML say.
#include "topology/discover.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/driver_fixture.hpp"
#include "topology/host_tree.hpp"
#include "topology/placement.hpp"

namespace vmem::topology {
namespace {

using gpu::emulated_driver;
using gpu::must;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Topology discovered(const std::string& spec) { return must(discover(*emulated_driver(spec))); }

int home_of(const Topology& topology, int device) { return host_node(topology, std::vector{device}).value_or(-1); }

TEST(Discover, UnevenNVLinksOrderThePeers) {
  const Topology topology = discovered("devices=4,p2p=100,p2p=0-2:50,p2p=1-3:50,p2p=0-3:0");
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(1, 2));
  EXPECT_THAT(peers_by_rate(topology, 2), ElementsAre(3, 1, 0));
  EXPECT_EQ(peers(topology, 0)[0].bytes_per_s, 100e9);
  EXPECT_TRUE(topology.emulated);
  EXPECT_THAT(topology.unknown, ElementsAre());
}

TEST(Discover, ASharedSwitchIsFound) {
  const Topology topology = discovered("devices=3,nvlink=0,switch=0+2:20");
  ASSERT_EQ(topology.all(NodeKind::pcie_switch).size(), 1u);
  const auto way = [&](int ordinal) {
    return best_path(topology, *topology.find(NodeKind::host, 0), *topology.find(NodeKind::device, ordinal))
        ->steps.size();
  };
  EXPECT_EQ(way(0), 3u);
  EXPECT_EQ(way(2), 3u);
  EXPECT_EQ(way(1), 2u);
  EXPECT_TRUE(peers(topology, 0)[0].shares_host_path);
}

TEST(Discover, DevicesAreAtTheirNumaNodes) {
  const Topology topology = discovered("devices=4,numa=2,near=1:1");
  EXPECT_EQ(home_of(topology, 0), 0);
  EXPECT_EQ(home_of(topology, 1), 1);
  EXPECT_EQ(home_of(topology, 3), 1);
}

TEST(Discover, WithoutNvmlTheDriverIsEnoughAndTheRestIsSaidToBeUnknown) {
  const Topology topology = discovered("devices=3,nvml=0,p2p=0-2:0,switch=0+1:5");
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(1));
  EXPECT_TRUE(peers(topology, 0)[0].nvlink);
  EXPECT_TRUE(topology.all(NodeKind::pcie_switch).empty());
  EXPECT_THAT(topology.unknown, Contains(HasSubstr("NVML does not start: Driver Not Loaded")));
  EXPECT_THAT(topology.unknown, Contains(HasSubstr("PCIe switch")));
}

// Every machine has a NUMA node and memory; where there is no hwloc, the answer says what to install.
TEST(HostTree, OfThisMachineOrWhyThereIsNone) {
  const auto tree = read_host_tree();
  if (!tree) {
    EXPECT_THAT(tree.error().message, HasSubstr("install hwloc"));
    return;
  }
  ASSERT_FALSE(tree->numa_nodes.empty());
  EXPECT_GT(tree->numa_nodes.front().bytes, 0u);
  for (const auto& drive : tree->drives) EXPECT_LT(drive.pci, tree->pci.size());
}

TEST(HostTree, OfAnUnreadableFileSaysSo) {
  const auto tree = read_host_tree("/nonexistent.xml");
  ASSERT_FALSE(tree);
  EXPECT_THAT(tree.error().message, HasSubstr("hwloc"));
}

}  // namespace
}  // namespace vmem::topology
