#include "tools/cluster/survey.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/counted.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"

namespace vmem::tools::local_cluster {
namespace {

using runtime::ClusterNode;

constexpr std::uint64_t kAnswerUs = 5'000'000;
constexpr std::size_t kMostBytes = 200;  // of one node's words, which it chooses

std::string addresses_of(const ClusterNode& node) {
  return printable(fmt::format("{}", fmt::join(node.record.addresses, ",")), kMostBytes);
}

std::string member_words(const Survey& survey, const Survey::Entry& entry) {
  if (entry.process.name == kEtcdName)
    return survey.registry_error.empty() ? fmt::format("answers at 127.0.0.1:{}", survey.state.client_port)
                                         : "does not answer: " + printable(survey.registry_error, kMostBytes);
  if (!entry.node) return survey.registry_error.empty() ? "no member" : "";
  const auto id = static_cast<std::uint64_t>(entry.node->id);
  if (!entry.lives) return fmt::format("is listed as node {} until its lease ends", id);
  const auto& lends = entry.node->record.lends;
  return fmt::format("node {} at {} lends {}{}{}", id, addresses_of(*entry.node), format_bytes(lends.memory),
                     lends.hbm == 0 ? "" : fmt::format(" and {} of HBM", format_bytes(lends.hbm)),
                     entry.node->drain ? "; drains" : "");
}

std::string line_of(const Survey& survey, const Survey::Entry& entry) {
  const std::string words = member_words(survey, entry);
  return fmt::format("  {:<5} {:<18}{}{}\n", entry.process.name,
                     entry.lives ? fmt::format("process {}", entry.process.id.pid) : "has ended",
                     words.empty() ? "" : " ", words);
}

nlohmann::json json_of(const Survey::Entry& entry) {
  nlohmann::json fields{{"name", entry.process.name},
                        {"pid", entry.process.id.pid},
                        {"lives", entry.lives},
                        {"command", entry.process.command}};
  if (!entry.node) return fields;
  fields["node"] = static_cast<std::uint64_t>(entry.node->id);
  fields["addresses"] = entry.node->record.addresses;
  fields["memory_bytes"] = entry.node->record.lends.memory;
  fields["hbm_bytes"] = entry.node->record.lends.hbm;
  fields["drains"] = entry.node->drain.has_value();
  return fields;
}

}  // namespace

bool is_node_of(const ClusterNode& node, const ManagedProcess& process) {
  const auto label = node.record.labels.find("node");
  return std::cmp_equal(node.record.pid, process.id.pid) && label != node.record.labels.end() &&
         label->second == process.name;
}

bool Survey::whole() const {
  return state.started && registry_error.empty() && std::ranges::all_of(entries, [](const Entry& entry) {
           return entry.lives && (entry.node || entry.process.name == kEtcdName);
         });
}

std::uint64_t Survey::lent_bytes() const {
  std::uint64_t bytes = 0;
  for (const Entry& each : entries)
    if (each.lives && each.node) bytes += each.node->record.lends.pages();
  return bytes;
}

Survey survey(const State& state) {
  Survey survey{.state = state, .entries = {}, .others = {}, .registry_error = ""};
  for (const ManagedProcess& each : state.processes)
    survey.entries.push_back({.process = each, .lives = lives(state, each), .node = std::nullopt});
  // Another process may have the port of an etcd that has ended.
  if (survey.entries.empty() || !survey.entries.front().lives) {
    survey.registry_error = "etcd has ended";
    return survey;
  }
  auto nodes = runtime::list_nodes({state.address, ""}, kAnswerUs);
  if (!nodes) {
    survey.registry_error = nodes.error().message;
    return survey;
  }
  for (ClusterNode& node : *nodes) {
    const auto own = std::ranges::find_if(survey.entries,
                                          [&](const Survey::Entry& entry) { return is_node_of(node, entry.process); });
    if (own != survey.entries.end())
      own->node = std::move(node);
    else
      survey.others.push_back(std::move(node));
  }
  return survey;
}

// Such as "; and 1 daemon that it did not start, lending 64 MiB".
std::string other_lenders(const Survey& survey) {
  std::uint64_t bytes = 0, lenders = 0;
  for (const ClusterNode& each : survey.others) {
    bytes += each.record.lends.pages();
    lenders += each.record.kind == "daemon" ? 1 : 0;
  }
  if (lenders == 0) return "";
  return fmt::format("; and {} that it did not start, lending {}", counted(lenders, "daemon", "daemons"),
                     format_bytes(bytes));
}

std::string text_of(const Survey& survey) {
  const auto living = std::ranges::count_if(
      survey.entries, [](const Survey::Entry& entry) { return entry.lives && entry.process.name != kEtcdName; });
  std::string text =
      fmt::format("{}: {} of {} alive and lending {}{}{}\n", survey.state.address, living,
                  counted(survey.state.nodes, "node", "nodes"), format_bytes(survey.lent_bytes()),
                  other_lenders(survey), survey.state.started ? "" : "; it is being started, or its start was cut off");
  for (const Survey::Entry& each : survey.entries) text += line_of(survey, each);
  for (const ClusterNode& each : survey.others)
    text += fmt::format("  {} {}: process {}{}\n", printable(each.record.kind, kMostBytes),
                        static_cast<std::uint64_t>(each.id), each.record.pid,
                        each.record.addresses.empty() ? "" : " at " + addresses_of(each));
  return text;
}

nlohmann::json json_of(const Survey& survey) {
  nlohmann::json processes = nlohmann::json::array(), others = nlohmann::json::array();
  for (const Survey::Entry& each : survey.entries) processes.push_back(json_of(each));
  for (const ClusterNode& each : survey.others)
    others.push_back({{"node", static_cast<std::uint64_t>(each.id)},
                      {"kind", each.record.kind},
                      {"pid", each.record.pid},
                      {"addresses", each.record.addresses}});
  return {{"cluster", survey.state.address},
          {"whole", survey.whole()},
          {"started", survey.state.started},
          {"nodes", survey.state.nodes},
          {"lent_bytes", survey.lent_bytes()},
          {"registry_error", survey.registry_error},
          {"processes", processes},
          {"others", others}};
}

}  // namespace vmem::tools::local_cluster
