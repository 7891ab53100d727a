// Discovers emulated machines as configured, through the driver and NVML.
#include "topology/discover.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

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

// Every machine has a NUMA node and memory. Without hwloc, the error says what to install.
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

// Two packages with a NUMA node each; the second has a switch with two GPUs and a disk.
constexpr const char* kTwoNodes = R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0x3" complete_cpuset="0x3" allowed_cpuset="0x3" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="3" local_memory="1073741824"/>
   <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
    <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="6">
   <object type="NUMANode" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="7" local_memory="2147483648"/>
   <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="8">
    <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x2" complete_nodeset="0x2" gp_index="9"/>
   </object>
   <object type="Bridge" gp_index="10" bridge_type="0-1" depth="0" bridge_pci="0000:[80-8f]">
    <object type="Bridge" gp_index="11" bridge_type="1-1" depth="1" bridge_pci="0000:[81-85]" pci_busid="0000:80:01.0" pci_type="0604 [10b5:8796] [0000:0000] ab" pci_link_speed="0.000000">
     <object type="PCIDev" gp_index="12" pci_busid="0000:82:00.0" pci_type="0302 [10de:2335] [0000:0000] a1" pci_link_speed="0.000000"/>
     <object type="PCIDev" gp_index="13" pci_busid="0000:83:00.0" pci_type="0302 [10de:2335] [0000:0000] a1" pci_link_speed="0.000000"/>
     <object type="PCIDev" gp_index="14" pci_busid="0000:84:00.0" pci_type="0108 [144d:a80a] [0000:0000] 00" pci_link_speed="0.000000">
      <object type="OSDev" gp_index="15" name="nvme0n1" osdev_type="0"/>
     </object>
    </object>
   </object>
  </object>
 </object>
</topology>
)";

TEST(HostTree, OfADescribedMachineHasItsSwitchNodesAndDisks) {
  const std::string file = testing::TempDir() + "vmem-two-nodes.xml";
  std::ofstream(file) << kTwoNodes;
  const auto tree = read_host_tree(file);
  std::remove(file.c_str());
  if (!tree) GTEST_SKIP() << tree.error().message;
  ASSERT_EQ(tree->numa_nodes.size(), 2u);
  EXPECT_EQ(tree->numa_nodes[1].bytes, 2u << 30);
  const auto gpu = tree->find({0, 0x82, 0, 0}), other = tree->find({0, 0x83, 0, 0});
  ASSERT_TRUE(gpu && other);
  EXPECT_EQ(tree->pci[*gpu].numa_node, 1);
  ASSERT_TRUE(tree->pci[*gpu].parent);
  EXPECT_EQ(tree->pci[*gpu].parent, tree->pci[*other].parent);
  EXPECT_TRUE(tree->pci[*tree->pci[*gpu].parent].bridge);
  ASSERT_EQ(tree->drives.size(), 1u);
  EXPECT_EQ(tree->drives[0].name, "nvme0n1");
  EXPECT_EQ(tree->pci[tree->drives[0].pci].address.text(), "0000:84:00.0");
}

TEST(HostTree, OfAnUnreadableFileSaysSo) {
  const auto tree = read_host_tree("/nonexistent.xml");
  ASSERT_FALSE(tree);
  EXPECT_THAT(tree.error().message, HasSubstr("hwloc"));
}

}  // namespace
}  // namespace vmem::topology
