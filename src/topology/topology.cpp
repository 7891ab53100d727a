#include "topology/topology.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::topology {

std::string_view kind_name(NodeKind kind) {
  switch (kind) {
    case NodeKind::device:
      return "device";
    case NodeKind::host:
      return "host node";
    case NodeKind::root:
      return "PCIe root";
    case NodeKind::pcie_switch:
      return "PCIe switch";
    case NodeKind::nvlink_switch:
      return "NVSwitch";
    case NodeKind::disk:
      return "disk";
    case NodeKind::network:
      return "network card";
    case NodeKind::fabric:
      return "network";
  }
  return "";
}

std::string_view kind_name(LinkKind kind) {
  switch (kind) {
    case LinkKind::nvlink:
      return "NVLink";
    case LinkKind::pcie:
      return "PCIe";
    case LinkKind::socket:
      return "socket";
    case LinkKind::memory:
      return "memory";
    case LinkKind::network:
      return "network";
  }
  return "";
}

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::unknown:
      return "unknown";
    case Origin::nominal:
      return "nominal";
    case Origin::measured:
      return "measured";
  }
  return "";
}

NodeIndex Topology::add(Node node) {
  nodes.push_back(std::move(node));
  return {static_cast<std::uint32_t>(nodes.size() - 1)};
}

std::optional<NodeIndex> Topology::find(NodeKind kind, int number) const {
  for (std::uint32_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].kind == kind && nodes[i].number == number) return NodeIndex{i};
  return std::nullopt;
}

std::vector<NodeIndex> Topology::all(NodeKind kind) const {
  std::vector<NodeIndex> found;
  for (std::uint32_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].kind == kind) found.push_back({i});
  std::ranges::stable_sort(found, {}, [&](NodeIndex id) { return nodes[id.value].number; });
  return found;
}

const Copy* Topology::copy(NodeIndex from, NodeIndex to) const {
  const auto found = std::ranges::find_if(copies, [&](const Copy& c) { return c.from == from && c.to == to; });
  return found == copies.end() ? nullptr : &*found;
}

void Topology::set_copy(NodeIndex from, NodeIndex to, Rate rate) {
  const auto found = std::ranges::find_if(copies, [&](const Copy& c) { return c.from == from && c.to == to; });
  if (found == copies.end())
    copies.push_back({from, to, rate});
  else
    found->rate = rate;
}

bool is_memory(NodeKind kind) {
  return kind == NodeKind::device || kind == NodeKind::host || kind == NodeKind::disk || kind == NodeKind::fabric;
}

std::string describe(const Node& node) {
  if (node.kind == NodeKind::disk || node.kind == NodeKind::network)
    return fmt::format("{} {}", kind_name(node.kind), node.name);
  if (node.kind == NodeKind::nvlink_switch || node.kind == NodeKind::fabric) return std::string(kind_name(node.kind));
  return fmt::format("{} {}", kind_name(node.kind), node.number);
}

}  // namespace vmem::topology
