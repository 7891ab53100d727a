// Nodes and links assembled from the sources; missing facts are reported as unknown.
#include "topology/assemble.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/placement.hpp"

namespace vmem::topology {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

Facts devices(int count) {
  Facts facts;
  for (int i = 0; i < count; ++i)
    facts.devices.push_back({"GPU", PciAddress{0, unsigned(0x10 + i), 0, 0}.text(), 1 << 20, 0, {}, std::nullopt});
  facts.pairs.assign(std::size_t(count), std::vector<PairFacts>(std::size_t(count)));
  for (auto& row : facts.pairs)
    for (PairFacts& pair : row) pair.access.reachable = true;
  return facts;
}

// Devices 0 and 1 and a disk behind ports of a switch on NUMA node 1; device 2 behind a port of its
// own on node 0.
HostTree tree_with_a_switch() {
  HostTree tree;
  tree.numa_nodes = {{0, 1u << 30}, {1, 2u << 30}};
  const auto add = [&](unsigned bus, unsigned device, std::optional<std::size_t> parent, int node, bool bridge) {
    tree.pci.push_back({{0, bus, device, 0}, parent, node, bridge});
    return tree.pci.size() - 1;
  };
  const std::size_t upstream = add(0x01, 0, std::nullopt, 1, true);
  const std::size_t port_a = add(0x02, 0, upstream, 1, true);
  const std::size_t port_b = add(0x02, 1, upstream, 1, true);
  const std::size_t port_c = add(0x02, 2, upstream, 1, true);
  add(0x10, 0, port_a, 1, false);
  add(0x11, 0, port_b, 1, false);
  tree.drives.push_back({"nvme0n1", add(0x20, 0, port_c, 1, false)});
  add(0x12, 0, add(0x03, 0, std::nullopt, 0, true), 0, false);
  tree.cards.push_back({"eth0", add(0x30, 0, std::nullopt, 0, false), 12.5e9});
  return tree;
}

std::optional<NodeIndex> neighbour(const Topology& topology, NodeIndex node, LinkKind kind) {
  for (const Link& link : topology.links)
    if (link.kind == kind && (link.a == node || link.b == node)) return link.a == node ? link.b : link.a;
  return std::nullopt;
}

NodeIndex device(const Topology& topology, int ordinal) { return *topology.find(NodeKind::device, ordinal); }

TEST(Assemble, AnUpstreamPortWithSeveralWaysIsASwitchAndOneWithASingleWayIsNot) {
  Facts facts = devices(3);
  for (DeviceFacts& each : facts.devices) each.numa_node.reset();  // the tree knows
  facts.host = tree_with_a_switch();
  const Topology topology = assemble(facts);
  ASSERT_EQ(topology.all(NodeKind::pcie_switch).size(), 1u);
  const NodeIndex shared = topology.all(NodeKind::pcie_switch).front();
  EXPECT_EQ(topology[shared].address, "0000:01:00.0");
  EXPECT_EQ(neighbour(topology, device(topology, 0), LinkKind::pcie), shared);
  EXPECT_EQ(neighbour(topology, device(topology, 1), LinkKind::pcie), shared);
  EXPECT_EQ(neighbour(topology, *topology.find(NodeKind::disk, 0), LinkKind::pcie), shared);
  EXPECT_EQ(neighbour(topology, device(topology, 2), LinkKind::pcie), topology.find(NodeKind::root, 0));
  EXPECT_EQ(host_node(topology, std::vector{1}), 1);
  EXPECT_EQ(host_node(topology, std::vector{2}), 0);
  EXPECT_EQ(topology[*topology.find(NodeKind::host, 1)].bytes, 2u << 30);
}

TEST(Assemble, APortWithACardOfTwoFunctionsIsNoSwitch) {
  Facts facts = devices(1);
  facts.host = HostTree{};
  facts.host->numa_nodes = {{0, 0}};
  facts.host->pci = {{{0, 1, 0, 0}, std::nullopt, 0, true}, {{0, 2, 0, 0}, 0, 0, false}, {{0, 2, 0, 1}, 0, 0, false}};
  facts.host->cards = {{"eth0", 1, std::nullopt}, {"eth1", 2, std::nullopt}};
  const Topology topology = assemble(facts);
  EXPECT_TRUE(topology.all(NodeKind::pcie_switch).empty());
  EXPECT_EQ(topology.all(NodeKind::network).size(), 2u);
}

TEST(Assemble, ANetworkCardLeadsToTheNetworkAtItsNegotiatedRate) {
  Facts facts = devices(3);
  facts.host = tree_with_a_switch();
  const Topology topology = assemble(facts);
  const auto path = best_path(topology, device(topology, 2), *topology.find(NodeKind::fabric, 0));
  ASSERT_TRUE(path);
  EXPECT_EQ(path_rate(topology, *path), 12.5e9);
}

TEST(Assemble, WithoutATreeDevicesThatMeetBelowTheHostShareASwitch) {
  Facts facts = devices(4);
  facts.nvml = true;
  const auto meet = [&](std::size_t a, std::size_t b, gpu::PcieMeeting where) {
    facts.pairs[a][b].meeting = facts.pairs[b][a].meeting = where;
  };
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < a; ++b) meet(a, b, gpu::PcieMeeting::host);
  meet(0, 1, gpu::PcieMeeting::one_switch);
  meet(0, 2, gpu::PcieMeeting::several_switches);
  meet(1, 2, gpu::PcieMeeting::several_switches);
  const Topology topology = assemble(facts);
  EXPECT_EQ(topology.all(NodeKind::pcie_switch).size(), 2u);
  const auto inner = neighbour(topology, device(topology, 0), LinkKind::pcie);
  EXPECT_EQ(neighbour(topology, device(topology, 1), LinkKind::pcie), inner);
  const auto outer = neighbour(topology, device(topology, 2), LinkKind::pcie);
  EXPECT_NE(outer, inner);
  EXPECT_EQ(neighbour(topology, *inner, LinkKind::pcie), outer);
  EXPECT_EQ(neighbour(topology, device(topology, 3), LinkKind::pcie), topology.find(NodeKind::root, 0));
  EXPECT_THAT(topology.unknown, ElementsAre());
}

TEST(Assemble, CountsTheNVLinksOfEachPairAndAddsTheirRates) {
  Facts facts = devices(3);
  facts.nvml = true;
  const auto link = [&](std::size_t from, std::size_t to) {
    // NVML writes domains with eight digits.
    const std::string far = "0000" + facts.devices[to].pci_bus_id;
    facts.devices[from].nvlinks.push_back({gpu::NvLink::Remote::gpu, far, 25e9});
  };
  for (int i = 0; i < 4; ++i) link(0, 1), link(1, 0);
  link(0, 2), link(2, 0);
  const Topology topology = assemble(facts);
  EXPECT_THAT(peers_by_rate(topology, 0), ElementsAre(1, 2));
  EXPECT_EQ(peers(topology, 0)[0].bytes_per_s, 100e9);
  EXPECT_EQ(topology.links.back().lanes, 1);
  EXPECT_EQ(topology.links.back().forward.origin, Origin::nominal);
}

TEST(Assemble, LinksToSwitchesMeetInOneFabric) {
  Facts facts = devices(3);
  facts.nvml = true;
  for (DeviceFacts& each : facts.devices) each.nvlinks.assign(18, {gpu::NvLink::Remote::fabric, "", std::nullopt});
  facts.devices[2].nvlinks.assign(18, {gpu::NvLink::Remote::unknown, "", std::nullopt});
  const Topology topology = assemble(facts);
  const auto found = peers(topology, 0);
  EXPECT_TRUE(found[0].nvlink);
  EXPECT_TRUE(found[1].nvlink);
  EXPECT_FALSE(found[0].bytes_per_s);
  EXPECT_EQ(topology.links.back().lanes, 18);
}

TEST(Assemble, WithoutNvmlNativeAtomicsTellNVLink) {
  Facts facts = devices(3);
  facts.pairs[0][2].native_atomics = facts.pairs[2][0].native_atomics = true;
  const Topology topology = assemble(facts);
  EXPECT_FALSE(peers(topology, 0)[0].shares_host_path);
  EXPECT_EQ(peers_by_rate(topology, 0).front(), 2);
  EXPECT_THAT(topology.unknown, Contains(HasSubstr("native atomics")));
  EXPECT_THAT(topology.unknown, Contains(HasSubstr("PCIe switch")));
}

TEST(Assemble, ADeviceOfUnknownNodeIsShownAndSaidToBe) {
  Facts facts = devices(2);
  facts.devices[0].numa_node.reset();
  facts.devices[1].numa_node = 1;
  facts.host = HostTree{};
  facts.host->numa_nodes = {{0, 0}, {1, 0}};
  const Topology topology = assemble(facts);
  EXPECT_THAT(topology.unknown, Contains(HasSubstr("NUMA node of device 0")));
  EXPECT_EQ(host_node(topology, std::vector{1}), 1);
}

TEST(Assemble, NominalPcieRatesComeFromGenerationAndLanes) {
  Facts facts = devices(1);
  facts.devices[0].pcie = {5, 16};
  const Topology topology = assemble(facts);
  EXPECT_NEAR(*places_by_rate(topology, 0)[1].bytes_per_s(), 63e9, 0.1e9);
}

TEST(PciAddresses, AreReadInEitherForm) {
  EXPECT_EQ(PciAddress::parse("0000:1B:00.0"), PciAddress::parse("00000000:1b:00.0"));
  EXPECT_EQ(PciAddress::parse("0001:1b:02.3")->text(), "0001:1b:02.3");
  for (const char* text : {"", "1b:00.0", "0000:1b:00", "0000:1b:00.0x", "device 0"})
    EXPECT_FALSE(PciAddress::parse(text)) << text;
}

}  // namespace
}  // namespace vmem::topology
