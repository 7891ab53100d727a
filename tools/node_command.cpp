// vmem node: the nodes of a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/counted.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "runtime/cluster/node_list.hpp"
#include "runtime/options/options.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

using runtime::ClusterNode;

constexpr std::uint64_t kMostUs = 10'000'000;
constexpr std::size_t kMostBytes = 200;  // of one node's words, which it chooses

struct Arguments {
  std::string cluster, certificates;
  bool json = false;
};

int refuse(const Error& error) {
  fmt::print(stderr, "vmem node list: {}\n", printable(error.message, 4000));
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

std::string lent_words(const cluster::NodeRecord::Lends& lends) {
  std::string words;
  const auto add = [&](std::uint64_t bytes, const char* what) {
    if (bytes != 0) words += fmt::format("{}{} of {}", words.empty() ? "" : ", ", format_bytes(bytes), what);
  };
  add(lends.memory, "memory");
  add(lends.disk, "disk");
  add(lends.hbm, "HBM");
  add(lends.copies, "copies of published regions");
  return words.empty() ? "nothing" : words;
}

std::string words(const ClusterNode& node) {
  std::string labels;
  for (const auto& [name, value] : node.record.labels)
    labels += fmt::format("{}{}={}", labels.empty() ? "" : ",", name, value);
  return fmt::format("{:>6}  {:<8} {:<24} lends {}; {}{}", static_cast<std::uint64_t>(node.id),
                     printable(node.record.kind, kMostBytes),
                     node.record.addresses.empty()
                         ? "-"
                         : printable(fmt::format("{}", fmt::join(node.record.addresses, ",")), kMostBytes),
                     lent_words(node.record.lends), printable(labels, kMostBytes), node.draining ? "; drains" : "");
}

nlohmann::json json_of(const ClusterNode& node) {
  const cluster::NodeRecord& record = node.record;
  return {{"id", static_cast<std::uint64_t>(node.id)},
          {"kind", record.kind},
          {"addresses", record.addresses},
          {"pid", record.pid},
          {"labels", record.labels},
          {"memory_bytes", record.lends.memory},
          {"disk_bytes", record.lends.disk},
          {"hbm_bytes", record.lends.hbm},
          {"copies_bytes", record.lends.copies},
          {"drains", node.draining}};
}

// A flag, else the environment, as for programs.
std::string value_of(const std::string& flag, std::string_view name) {
  if (!flag.empty()) return flag;
  return option_in_environment(*std::ranges::find(option_table(), name, &OptionDefinition::name)).value_or("");
}

int list(const Arguments& arguments) {
  const std::string cluster = value_of(arguments.cluster, "cluster");
  if (cluster.empty() || cluster == "off")
    return refuse({VMEM_ERROR_INVALID_OPTION, 0, "no cluster is named: give --cluster etcd://HOST:PORT/NAME"});
  const auto nodes = runtime::list_nodes({cluster, value_of(arguments.certificates, "certificates")}, kMostUs);
  if (!nodes) return refuse(nodes.error());
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const ClusterNode& node : *nodes) all.push_back(json_of(node));
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return bench::kExitOk;
  }
  fmt::print("{}\n", counted(nodes->size(), "node", "nodes"));
  for (const ClusterNode& node : *nodes) fmt::print("{}\n", words(node));
  return bench::kExitOk;
}

}  // namespace

Command add_node(CLI::App& app) {
  app.require_subcommand(1);
  CLI::App* const lists = app.add_subcommand("list", "List the nodes: what each is, where, and what it lends");
  const auto arguments = std::make_shared<Arguments>();
  lists->add_option("--cluster", arguments->cluster, "The cluster's registry (VMEM_CLUSTER)")
      ->type_name("etcd://HOST:PORT/NAME");
  lists
      ->add_option("--certificates", arguments->certificates, "For etcds://: a folder with ca.crt, tls.crt and tls.key")
      ->type_name("DIR");
  lists->add_flag("--json", arguments->json, "As JSON");
  app.footer("Exit codes: 0 done; 2 bad options; 3 the registry did not answer.");
  return [arguments] { return list(*arguments); };
}

}  // namespace vmem::tools
