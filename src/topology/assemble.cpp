#include "topology/assemble.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

namespace vmem::topology {
namespace {

// GB/s per lane after line coding, by generation from 1.
constexpr std::array kPcieLane = {0.25, 0.5, 0.985, 1.969, 3.938, 7.563};

Rate nominal(std::optional<double> bytes_per_s) { return bytes_per_s ? Rate{*bytes_per_s, Origin::nominal} : Rate{}; }

Rate pcie_rate(const gpu::Nvml::Pcie& pcie) {
  if (pcie.generation == 0 || pcie.generation > kPcieLane.size()) return {};
  return nominal(kPcieLane[pcie.generation - 1] * 1e9 * pcie.lanes);
}

class Assembler {
 public:
  explicit Assembler(const Facts& facts) : facts_(facts) {}

  Topology run() {
    topology_.emulated = facts_.emulated;
    topology_.unknown = facts_.unknown;
    add_host_nodes();
    add_devices();
    if (facts_.host) add_tree();
    join_the_rest();
    add_nvlinks();
    add_access();
    return std::move(topology_);
  }

 private:
  void connect(NodeIndex a, NodeIndex b, LinkKind kind, Rate rate = {}, int lanes = 0) {
    topology_.links.push_back({a, b, kind, rate, rate, {}, lanes});
  }

  void unknown(std::string sentence) { topology_.unknown.push_back(std::move(sentence)); }

  // ---- NUMA nodes ----

  void add_host_nodes() {
    std::map<int, std::uint64_t> nodes;
    if (facts_.host)
      for (const auto& node : facts_.host->numa_nodes) nodes[node.number] = node.bytes;
    for (const DeviceFacts& device : facts_.devices)
      if (device.numa_node) nodes.try_emplace(*device.numa_node, 0);
    if (nodes.empty()) nodes[0] = 0;
    for (const auto& [number, bytes] : nodes) {
      const NodeIndex host = topology_.add({NodeKind::host, number, "", "", bytes});
      const NodeIndex root = topology_.add({NodeKind::root, number, "", "", 0});
      connect(host, root, LinkKind::memory);
      for (const NodeIndex other : topology_.all(NodeKind::root))
        if (other != root) connect(other, root, LinkKind::socket);
    }
  }

  // The root of a NUMA node. If the node is unknown: the lowest root, with a note in `unknown`.
  NodeIndex root_of(std::optional<int> numa_node, const std::string& what) {
    if (const auto root = numa_node ? topology_.find(NodeKind::root, *numa_node) : std::nullopt) return *root;
    const auto roots = topology_.all(NodeKind::root);
    if (roots.size() > 1)
      unknown(fmt::format("the NUMA node of {} is not known; it is shown at node {}", what,
                          topology_[roots.front()].number));
    return roots.front();
  }

  // ---- devices ----

  void add_devices() {
    for (std::size_t i = 0; i < facts_.devices.size(); ++i) {
      const DeviceFacts& device = facts_.devices[i];
      devices_.push_back(topology_.add({NodeKind::device, int(i), device.name, device.pci_bus_id, device.bytes}));
      addresses_.push_back(PciAddress::parse(device.pci_bus_id));
      joined_.push_back(false);
    }
  }

  std::optional<std::size_t> device_at(const std::optional<PciAddress>& address) const {
    const auto found = std::ranges::find(addresses_, address);
    if (!address || found == addresses_.end()) return std::nullopt;
    return std::size_t(found - addresses_.begin());
  }

  std::optional<int> numa_node_of(std::size_t device) const {
    if (facts_.devices[device].numa_node) return facts_.devices[device].numa_node;
    const auto pci = facts_.host && addresses_[device] ? facts_.host->find(*addresses_[device]) : std::nullopt;
    return pci ? facts_.host->pci[*pci].numa_node : std::nullopt;
  }

  void join_device(std::size_t device, NodeIndex parent) {
    const auto& pcie = facts_.devices[device].pcie;
    connect(parent, devices_[device], LinkKind::pcie, pcie ? pcie_rate(*pcie) : Rate{}, pcie ? int(pcie->lanes) : 0);
    joined_[device] = true;
  }

  // ---- the PCIe tree ----

  // A bridge with several branches below that lead to a leaf is a switch; with one branch, a port.
  void add_tree() {
    const HostTree& tree = *facts_.host;
    std::vector<std::size_t> leaves;
    for (const auto& address : addresses_)
      if (const auto pci = address ? tree.find(*address) : std::nullopt) leaves.push_back(*pci);
    for (const auto& drive : tree.drives) leaves.push_back(drive.pci);
    for (const auto& card : tree.cards) leaves.push_back(card.pci);
    for (std::size_t child : leaves)
      for (auto above = tree.pci[child].parent; above; above = tree.pci[child].parent) {
        ways_[*above].emplace(tree.pci[child].address.bus, tree.pci[child].address.device);
        child = *above;
      }
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (const auto pci = addresses_[i] ? tree.find(*addresses_[i]) : std::nullopt)
        join_device(i, above(*pci, numa_node_of(i), fmt::format("device {}", i)));
    for (std::size_t i = 0; i < tree.drives.size(); ++i) add_drive(int(i), tree.drives[i]);
    for (std::size_t i = 0; i < tree.cards.size(); ++i) add_card(int(i), tree.cards[i]);
  }

  NodeIndex above(std::size_t pci, std::optional<int> numa_node, const std::string& what) {
    for (auto bridge = facts_.host->pci[pci].parent; bridge; bridge = facts_.host->pci[*bridge].parent)
      if (ways_[*bridge].size() > 1) return switch_of(*bridge, numa_node, what);
    return root_of(numa_node, what);
  }

  NodeIndex switch_of(std::size_t bridge, std::optional<int> numa_node, const std::string& what) {
    if (const auto known = switches_.find(bridge); known != switches_.end()) return known->second;
    const auto parent = above(bridge, numa_node, what);
    const NodeIndex added = add_switch(facts_.host->pci[bridge].address.text());
    switches_[bridge] = added;
    connect(parent, added, LinkKind::pcie);
    return added;
  }

  NodeIndex add_switch(std::string address) {
    return topology_.add(
        {NodeKind::pcie_switch, int(topology_.all(NodeKind::pcie_switch).size()), "", std::move(address), 0});
  }

  void add_drive(int number, const HostTree::Drive& drive) {
    const HostTree::Pci& pci = facts_.host->pci[drive.pci];
    const NodeIndex disk = topology_.add({NodeKind::disk, number, drive.name, pci.address.text(), 0});
    connect(above(drive.pci, pci.numa_node, "disk " + drive.name), disk, LinkKind::pcie);
  }

  void add_card(int number, const HostTree::Card& card) {
    const HostTree::Pci& pci = facts_.host->pci[card.pci];
    const NodeIndex node = topology_.add({NodeKind::network, number, card.name, pci.address.text(), 0});
    connect(above(card.pci, pci.numa_node, "network card " + card.name), node, LinkKind::pcie);
    const auto known = topology_.find(NodeKind::fabric, 0);
    const NodeIndex fabric = known ? *known : topology_.add({NodeKind::fabric, 0, "", "", 0});
    connect(node, fabric, LinkKind::network, nominal(card.bytes_per_s));
  }

  // ---- devices that no tree shows ----

  // NVML tells for each pair where their PCIe paths meet. Devices that meet below the host share
  // one switch, or a hierarchy of switches.
  void join_the_rest() {
    std::vector<std::size_t> rest;
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (!joined_[i]) rest.push_back(i);
    if (rest.size() > 1 && !facts_.nvml)
      unknown("whether devices share a PCIe switch: neither hwloc nor NVML shows their places");
    for (const auto& outer : groups(rest, gpu::PcieMeeting::several_switches)) {
      const NodeIndex root = root_of(numa_node_of(outer.front()), fmt::format("device {}", outer.front()));
      const auto inner = groups(outer, gpu::PcieMeeting::one_switch);
      const NodeIndex parent = inner.size() > 1 ? switch_below(root) : root;
      for (const auto& group : inner) {
        const NodeIndex own = group.size() > 1 ? switch_below(parent) : parent;
        for (const std::size_t device : group) join_device(device, own);
      }
    }
  }

  NodeIndex switch_below(NodeIndex parent) {
    const NodeIndex added = add_switch("");
    connect(parent, added, LinkKind::pcie);
    return added;
  }

  // Groups the devices that meet at `level` or below.
  std::vector<std::vector<std::size_t>> groups(const std::vector<std::size_t>& devices, gpu::PcieMeeting level) const {
    std::vector<std::vector<std::size_t>> result;
    for (const std::size_t device : devices) {
      const auto group = std::ranges::find_if(result, [&](const auto& members) {
        const auto& meeting = facts_.pairs[members.front()][device].meeting;
        return meeting && *meeting <= level;
      });
      if (group == result.end())
        result.push_back({device});
      else
        group->push_back(device);
    }
    return result;
  }

  // ---- NVLink ----

  struct Bundle {
    int lanes = 0;
    double bytes_per_s = 0;
    bool known = true;
    void add(const gpu::NvLink& link) {
      ++lanes;
      known &= link.bytes_per_s.has_value();
      bytes_per_s += link.bytes_per_s.value_or(0);
    }
    Rate rate() const { return nominal(known && lanes > 0 ? std::optional(bytes_per_s) : std::nullopt); }
  };

  void add_nvlinks() {
    if (!facts_.nvml) return add_links_of_atomics();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      std::map<std::size_t, Bundle> direct;
      Bundle fabric;
      for (const gpu::NvLink& link : facts_.devices[i].nvlinks) {
        const auto peer =
            link.remote == gpu::NvLink::Remote::fabric ? std::nullopt : device_at(PciAddress::parse(link.pci_bus_id));
        if (peer) direct[*peer].add(link);
        // otherwise a GPU that the driver does not show
        else if (link.remote != gpu::NvLink::Remote::gpu)
          fabric.add(link);
      }
      for (const auto& [peer, bundle] : direct)
        if (peer > i) connect(devices_[i], devices_[peer], LinkKind::nvlink, bundle.rate(), bundle.lanes);
      if (fabric.lanes > 0) connect(devices_[i], nvlink_switch(), LinkKind::nvlink, fabric.rate(), fabric.lanes);
    }
    for_each_pair([&](std::size_t i, std::size_t j) {
      // In some virtual machines NVML lists no links, but still answers for pairs.
      if (facts_.pairs[i][j].nvlink.value_or(false) && facts_.devices[i].nvlinks.empty())
        connect(devices_[i], devices_[j], LinkKind::nvlink);
    });
  }

  NodeIndex nvlink_switch() {
    const auto known = topology_.find(NodeKind::nvlink_switch, 0);
    return known ? *known : topology_.add({NodeKind::nvlink_switch, 0, "", "", 0});
  }

  void add_links_of_atomics() {
    for_each_pair([&](std::size_t i, std::size_t j) {
      if (facts_.pairs[i][j].native_atomics) connect(devices_[i], devices_[j], LinkKind::nvlink);
    });
    if (std::ranges::any_of(topology_.links, [](const Link& link) { return link.kind == LinkKind::nvlink; }))
      unknown(
          "how many NVLinks there are, and whether through NVSwitches: NVML did not say; pairs with native atomics are "
          "shown as linked");
  }

  template <class Visit>
  void for_each_pair(Visit visit) const {
    for (std::size_t i = 0; i < devices_.size(); ++i)
      for (std::size_t j = i + 1; j < devices_.size(); ++j) visit(i, j);
  }

  void add_access() {
    for (const auto& row : facts_.pairs) {
      auto& accesses = topology_.peers.emplace_back();
      for (const PairFacts& pair : row) accesses.push_back(pair.access);
    }
  }

  const Facts& facts_;
  Topology topology_;
  std::vector<NodeIndex> devices_;  // by ordinal, as the next two
  std::vector<std::optional<PciAddress>> addresses_;
  std::vector<bool> joined_;
  // Per bridge, the slots below that lead to a leaf. All functions of one card share a slot.
  std::map<std::size_t, std::set<std::pair<unsigned, unsigned>>> ways_;
  std::map<std::size_t, NodeIndex> switches_;  // by bridge
};

}  // namespace

Topology assemble(const Facts& facts) { return Assembler(facts).run(); }

}  // namespace vmem::topology
