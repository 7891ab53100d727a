#include "topology/machines.hpp"

namespace vmem::topology {
namespace {

bool one_in(std::mt19937_64& random, int n) { return random() % std::uint64_t(n) == 0; }

double some_rate(std::mt19937_64& random) {
  return double(1 + random() % 40) * 5;  // few enough values that some paths tie
}

Rate some_or_none(std::mt19937_64& random) { return one_in(random, 5) ? Rate{} : measured(some_rate(random)); }

Link some_link(std::mt19937_64& random, NodeIndex a, NodeIndex b, LinkKind kind) {
  Link link{a, b, kind, some_or_none(random), some_or_none(random), {}, 0};
  if (one_in(random, 4)) link.both = measured(some_rate(random));
  return link;
}

}  // namespace

Rate measured(double gbps) { return {gbps * GBps, Origin::measured}; }

Link join(NodeIndex a, NodeIndex b, LinkKind kind, double gbps) {
  return {a, b, kind, measured(gbps), measured(gbps), {}, 0};
}

void allow_all_peers(Topology& topology) {
  const std::size_t count = topology.all(NodeKind::device).size();
  topology.peers.assign(count, std::vector<PeerAccess>(count, {true, 0}));
}

Topology host_nodes(int nodes, double socket_gbps) {
  Topology topology;
  for (int i = 0; i < nodes; ++i) {
    const NodeIndex host = topology.add({NodeKind::host, i, "", "", 0});
    const NodeIndex root = topology.add({NodeKind::root, i, "", "", 0});
    topology.links.push_back({host, root, LinkKind::memory, {}, {}, {}, 0});
    for (int j = 0; j < i; ++j)
      topology.links.push_back(join(*topology.find(NodeKind::root, j), root, LinkKind::socket, socket_gbps));
  }
  return topology;
}

NodeIndex add_device(Topology& topology, NodeIndex parent, double pcie_gbps) {
  const int ordinal = int(topology.all(NodeKind::device).size());
  const NodeIndex device = topology.add({NodeKind::device, ordinal, "GPU", "", 0});
  topology.links.push_back(join(parent, device, LinkKind::pcie, pcie_gbps));
  return device;
}

Topology uneven_nvlinks() {
  Topology topology = host_nodes(1, 0);
  const NodeIndex root = *topology.find(NodeKind::root, 0);
  std::vector<NodeIndex> devices;
  for (int i = 0; i < 4; ++i) devices.push_back(add_device(topology, root, 12));
  const auto nvlink = [&](std::size_t a, std::size_t b, double gbps) {
    topology.links.push_back(join(devices[a], devices[b], LinkKind::nvlink, gbps));
  };
  nvlink(0, 1, 100);
  nvlink(2, 3, 100);
  nvlink(0, 2, 50);
  nvlink(1, 3, 50);
  allow_all_peers(topology);
  return topology;
}

Topology shared_switch() {
  Topology topology = host_nodes(1, 0);
  const NodeIndex root = *topology.find(NodeKind::root, 0);
  const NodeIndex pcie_switch = topology.add({NodeKind::pcie_switch, 0, "", "", 0});
  topology.links.push_back(join(root, pcie_switch, LinkKind::pcie, 25));
  add_device(topology, pcie_switch, 25);
  add_device(topology, pcie_switch, 25);
  add_device(topology, root, 25);
  allow_all_peers(topology);
  return topology;
}

Topology two_numa_nodes() {
  Topology topology = host_nodes(2, 10);
  for (int i = 0; i < 4; ++i) add_device(topology, *topology.find(NodeKind::root, i / 2), 25);
  allow_all_peers(topology);
  return topology;
}

Topology random_machine(std::mt19937_64& random, int devices) {
  Topology topology = host_nodes(int(1 + random() % 3), some_rate(random));
  std::vector<NodeIndex> parents = topology.all(NodeKind::root);
  for (int i = 0; i < int(random() % 4); ++i) {
    const NodeIndex pcie_switch = topology.add({NodeKind::pcie_switch, i, "", "", 0});
    topology.links.push_back(some_link(random, parents[random() % parents.size()], pcie_switch, LinkKind::pcie));
    parents.push_back(pcie_switch);
  }
  std::vector<NodeIndex> ids;
  for (int i = 0; i < devices; ++i) {
    ids.push_back(topology.add({NodeKind::device, i, "GPU", "", 0}));
    topology.links.push_back(some_link(random, parents[random() % parents.size()], ids.back(), LinkKind::pcie));
  }
  const NodeIndex fabric = topology.add({NodeKind::nvlink_switch, 0, "", "", 0});
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (one_in(random, 3)) topology.links.push_back(some_link(random, ids[i], fabric, LinkKind::nvlink));
    for (std::size_t j = 0; j < i; ++j)
      if (one_in(random, 3)) topology.links.push_back(some_link(random, ids[j], ids[i], LinkKind::nvlink));
  }
  allow_all_peers(topology);
  for (auto& row : topology.peers)
    for (PeerAccess& access : row) access = {!one_in(random, 6), int(random() % 3)};
  for (int i = 0; i < 3; ++i)
    topology.set_copy(ids[random() % ids.size()], ids[random() % ids.size()], measured(some_rate(random)));
  return topology;
}

}  // namespace vmem::topology
