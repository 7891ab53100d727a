#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "tools/topo/topo.hpp"
#include "topology/placement.hpp"

namespace vmem::tools::topo {
namespace {

using namespace topology;

using Row = std::vector<std::string>;

// Words left-aligned, figures right-aligned.
std::string format_rows(const std::vector<Row>& rows, std::size_t words) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i < words ? fmt::format("  {:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string gigabytes(std::optional<double> bytes_per_s) {
  return bytes_per_s ? fmt::format("{:.{}f}", *bytes_per_s / 1e9, *bytes_per_s < 10e9 ? 2 : 1) : "-";
}

// Marks a nominal rate with *.
std::string gigabytes(const Rate& rate) {
  if (!rate.known()) return "-";
  return gigabytes(std::optional(rate.bytes_per_s)) + (rate.origin == Origin::nominal ? "*" : "");
}

std::string details(const Node& node) {
  std::string text;
  const auto add = [&](const std::string& more) {
    if (!more.empty()) text += (text.empty() ? "" : ", ") + more;
  };
  if (node.kind == NodeKind::device) add(node.name);
  if (node.bytes > 0) add(format_bytes(node.bytes));
  if (!node.address.empty()) add("at " + node.address);
  return text;
}

std::string node_table(const Topology& machine) {
  std::vector<Row> rows;
  for (const NodeKind kind : {NodeKind::device, NodeKind::host, NodeKind::pcie_switch, NodeKind::nvlink_switch,
                              NodeKind::disk, NodeKind::network})
    for (const NodeIndex node : machine.all(kind)) rows.push_back({describe(machine[node]), details(machine[node])});
  return format_rows(rows, 2);
}

std::string way_of(const Topology& machine, NodeIndex device, NodeIndex memory) {
  const auto path = best_path(machine, device, memory);
  std::string text;
  for (std::size_t i = 0; path && i < path->steps.size(); ++i) {
    const Link& link = machine.links[path->steps[i].link];
    const bool again = i > 0 && machine.links[path->steps[i - 1].link].kind == link.kind;
    if (link.kind == LinkKind::memory || again) continue;
    text += (text.empty() ? "" : ", ") + std::string(kind_name(link.kind));
  }
  return text;
}

std::string tier_table(const Topology& machine, int device) {
  std::vector<Row> rows = {{"memory", "over", "fetch", "store"}};
  const NodeIndex own = *machine.find(NodeKind::device, device);
  for (const Place& place : places_by_rate(machine, device)) {
    const std::string name = place.memory == own ? "its own HBM, a copy in it" : describe(machine[place.memory]);
    rows.push_back({name, way_of(machine, own, place.memory), gigabytes(place.fetch_bytes_per_s),
                    gigabytes(place.store_bytes_per_s)});
  }
  return format_rows(rows, 2);
}

std::string disk_table(const Topology& machine) {
  std::vector<Row> rows = {{"disk", "read", "write"}};
  for (const Link& link : machine.links) {
    const Node& node = machine[link.b];
    if (node.kind == NodeKind::disk && link.forward.known())
      rows.push_back({describe(node), gigabytes(link.backward), gigabytes(link.forward)});
  }
  return rows.size() > 1 ? "\nDisks, GB/s\n" + format_rows(rows, 1) : "";
}

std::string link_table(const Topology& machine) {
  std::vector<Row> rows = {{"from", "to", "link", "there", "back", "both"}};
  for (const Link& link : machine.links) {
    if (link.kind == LinkKind::memory) continue;  // starts a root; no copy can measure it
    const std::string kind =
        fmt::format("{}{}", kind_name(link.kind), link.lanes > 0 ? fmt::format(" x{}", link.lanes) : "");
    rows.push_back({describe(machine[link.a]), describe(machine[link.b]), kind, gigabytes(link.forward),
                    gigabytes(link.backward), gigabytes(link.both)});
  }
  return rows.size() > 1 ? "\nLinks, GB/s in each direction, and in both at once\n" + format_rows(rows, 3) : "";
}

bool has_nominal(const Topology& machine) {
  return std::ranges::any_of(machine.links, [](const Link& link) { return link.forward.origin == Origin::nominal; });
}

}  // namespace

std::string to_text(const Answer& answer) {
  const Topology& machine = answer.saved.topology;
  std::string text = answer.saved.key.machine + ", driver " + answer.saved.key.driver + "\n";
  if (machine.emulated)
    text += "Emulated: devices and links are settings (VMEM_EMU); the figures say nothing about GPUs.\n";
  text += node_table(machine);
  for (const NodeIndex node : machine.all(NodeKind::device)) {
    const int device = machine[node].number;
    const auto host = host_node(machine, std::span(&device, 1));
    text += fmt::format("\nTiers of device {}, the best first, GB/s{}\n", device,
                        host ? fmt::format("; its pinned memory: host node {}", *host) : "");
    text += tier_table(machine, device);
  }
  if (machine.all(NodeKind::device).empty()) text += disk_table(machine);
  text += link_table(machine);
  if (has_nominal(machine)) text += "  * as the device says, not measured\n";
  if (!machine.unknown.empty()) text += "\nNot known\n";
  for (const std::string& sentence : machine.unknown) text += "  " + sentence + "\n";
  if (!answer.notes.empty()) text += "\n";
  for (const std::string& note : answer.notes) text += note + "\n";
  return text;
}

}  // namespace vmem::tools::topo
