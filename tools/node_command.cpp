// vmem node: the nodes of a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "base/counted.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "cluster/enrollment/json_fields.hpp"
#include "runtime/cluster/drain_watch.hpp"
#include "runtime/cluster/node_drain.hpp"
#include "runtime/cluster/node_list.hpp"
#include "runtime/cluster/region_list.hpp"
#include "tools/commands.hpp"
#include "tools/registry_flags.hpp"

namespace vmem::tools {
namespace {

using runtime::ClusterNode;

constexpr std::uint64_t kMostUs = 10'000'000;
constexpr std::size_t kMostBytes = 200;  // of one node's words, which it chooses

constexpr auto kPeriod = std::chrono::seconds(1);  // between looks, with --wait

// Daemons say about once a second what they hold.
constexpr std::uint64_t kFiguresUs = 3'000'000;
constexpr auto kFiguresPeriod = std::chrono::milliseconds(100);

struct Arguments {
  RegistryFlags registry;
  bool json = false;
  std::uint64_t node = 0;
  cluster::DrainOrder order;
  std::uint64_t hbm_bytes = 0;  // of limit
  bool wait = false, force = false;
};

int refuse(const char* command, const Error& error) {
  fmt::print(stderr, "vmem node {}: {}\n", command, printable(error.message, 4000));
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

std::string lent_words(const ClusterNode& node) {
  const cluster::NodeRecord& record = node.record;
  const cluster::NodeRecord::Lends& lends = record.lends;
  const auto path = record.labels.find(std::string(cluster::kHbmLabel));
  const std::string hbm =
      path == record.labels.end() ? "HBM" : fmt::format("HBM ({})", printable(path->second, kMostBytes));
  std::string words;
  const auto add = [&](std::uint64_t bytes, std::string_view what) {
    if (bytes != 0) words += fmt::format("{}{} of {}", words.empty() ? "" : ", ", format_bytes(bytes), what);
  };
  add(lends.memory, "memory");
  add(lends.disk, "disk");
  add(lends.hbm, hbm);
  if (record.mapped.bytes != 0)
    words += fmt::format(", of which programs of its host map {}", format_bytes(record.mapped.bytes));
  if (node.hbm_limit) words += fmt::format(", limited to {}", format_bytes(node.hbm_limit->bytes));
  add(lends.copies, "copies of published regions");
  return words.empty() ? "nothing" : words;
}

std::string holds_words(const ClusterNode& node) {
  if (!node.holds) return "has not said what it holds";
  std::string words = fmt::format("holds {} of pages", format_bytes(node.holds->pages()));
  if (node.holds->hbm_mapped != 0)
    words += fmt::format(", of which programs of its host map {}", format_bytes(node.holds->hbm_mapped));
  if (node.holds->copies != 0) words += fmt::format(", {} of copies", format_bytes(node.holds->copies));
  if (node.holds->pages() == 0 && node.holds->leased != 0)
    words += fmt::format(", programs have leases on {}", format_bytes(node.holds->leased));
  return words;
}

std::string words(const ClusterNode& node) {
  std::string labels;
  for (const auto& [name, value] : node.record.labels)
    if (name != cluster::kHbmLabel) labels += fmt::format("{}{}={}", labels.empty() ? "" : ",", name, value);
  return fmt::format(
      "{:>6}  {:<8} {:<24} lends {}; {}{}", static_cast<std::uint64_t>(node.id),
      printable(node.record.kind, kMostBytes),
      node.record.addresses.empty() ? "-"
                                    : printable(fmt::format("{}", fmt::join(node.record.addresses, ",")), kMostBytes),
      lent_words(node), printable(labels, kMostBytes), node.drain ? "; drains, and " + holds_words(node) : "");
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
          {"held_bytes", node.holds ? node.holds->pages() : 0},
          {"held_copies_bytes", node.holds ? node.holds->copies : 0},
          {"hbm_taken_bytes", node.holds ? node.holds->hbm_taken : 0},
          {"hbm_mapped_bytes", record.mapped.bytes},
          {"hbm_mapped_taken_bytes", node.holds ? node.holds->hbm_mapped : 0},
          {"hbm_mapper_pid", node.holds ? node.holds->hbm_mapper : 0},
          {"hbm_pages_sent_directly", node.holds ? node.holds->hbm_direct : 0},
          {"hbm_pages_sent_through_staging", node.holds ? node.holds->hbm_staged : 0},
          {"hbm_limit_bytes", node.hbm_limit ? node.hbm_limit->bytes : record.lends.hbm},
          {"drains", node.drain.has_value()}};
}

int list(const Arguments& arguments) {
  const auto access = arguments.registry.access();
  if (!access) return refuse("list", access.error());
  const auto nodes = runtime::list_nodes(*access, kMostUs);
  if (!nodes) return refuse("list", nodes.error());
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const ClusterNode& node : *nodes) all.push_back(json_of(node));
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return bench::kExitOk;
  }
  if (nodes->empty()) {
    fmt::print("cluster '{}' has no nodes; is that its name?\n", access->cluster());
    return bench::kExitOk;
  }
  fmt::print("{}\n", counted(nodes->size(), "node", "nodes"));
  for (const ClusterNode& node : *nodes) fmt::print("{}\n", words(node));
  return bench::kExitOk;
}

// Before an order is refused for room.
runtime::AwaitFigures await_figures() {
  return [clock = SteadyClock(), begun_us = SteadyClock().now_us()] {
    if (clock.now_us() - begun_us >= kFiguresUs) return false;
    std::this_thread::sleep_for(kFiguresPeriod);
    return true;
  };
}

// ---- drains ----

// What a look at a node that drains has found. `code`: set if there is nothing to wait for.
struct Progress {
  std::string words;
  std::optional<int> code;
};

Progress progress_of(const std::optional<ClusterNode>& node, const cluster::DrainOrder& order) {
  if (!node) {
    if (order.exit) return {"is drained, and has left", bench::kExitOk};
    return {"has left the cluster before it was seen to hold nothing", bench::kExitFailed};
  }
  if (!node->drain) return {"is not asked to leave any more", bench::kExitFailed};
  if (!node->holds || !node->holds->drains || node->holds->any()) return {holds_words(*node), std::nullopt};
  if (order.exit) return {"is drained, and leaves", std::nullopt};
  return {"is drained: it holds nothing", bench::kExitOk};
}

// Says what each look has found, until there is nothing to wait for.
template <class Look, class Why>
int wait_for(const char* command, const runtime::RegistryAccess& access, const Arguments& arguments, const Look& look,
             const Why& why) {
  runtime::DrainWatch watch;
  const auto say = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines) fmt::print("node {} {}\n", arguments.node, line);
    std::fflush(stdout);
  };
  const SteadyClock clock;
  while (true) {
    const auto nodes = runtime::list_nodes(access, kMostUs);
    if (!nodes && nodes.error().status != VMEM_ERROR_TIMEOUT) return refuse(command, nodes.error());
    if (nodes) {
      const auto found = std::ranges::find(*nodes, NodeId{arguments.node}, &ClusterNode::id);
      const auto node = found == nodes->end() ? std::nullopt : std::optional(*found);
      const Progress progress = look(node);
      say(watch.saw(progress.words, node ? why(*nodes, *node) : "", clock.now_us()));
      if (progress.code) return *progress.code;
    } else {
      say(watch.saw(nodes.error()));
    }
    std::this_thread::sleep_for(kPeriod);
  }
}

// Those that may be in its way. Without an answer they are not named.
std::vector<runtime::ListedRegion> regions_of(const runtime::RegistryAccess& access, const ClusterNode& node) {
  if (!node.holds || node.holds->copies == 0) return {};
  return runtime::list_regions(access, kMostUs).value_or(std::vector<runtime::ListedRegion>{});
}

int drain(const Arguments& arguments) {
  const auto access = arguments.registry.access();
  if (!access) return refuse("drain", access.error());
  const auto registry = runtime::RegistryClient::open(*access, kMostUs);
  if (!registry) return refuse("drain", registry.error());
  const auto check = arguments.order.force ? runtime::RoomCheck::skipped : runtime::RoomCheck::required;
  if (const auto done =
          runtime::drain_node(**registry, NodeId{arguments.node}, arguments.order, check, await_figures());
      !done)
    return refuse("drain", done.error());
  fmt::print("node {} drains: it gets nothing new, and programs move away what they have there\n", arguments.node);
  std::fflush(stdout);
  if (!arguments.wait) return bench::kExitOk;
  return wait_for(
      "drain", *access, arguments,
      [&](const std::optional<ClusterNode>& node) { return progress_of(node, arguments.order); },
      [&](const std::vector<ClusterNode>& nodes, const ClusterNode& node) {
        return runtime::standstill(nodes, regions_of(*access, node), node);
      });
}

int undrain(const Arguments& arguments) {
  const auto access = arguments.registry.access();
  if (!access) return refuse("undrain", access.error());
  const auto registry = runtime::RegistryClient::open(*access, kMostUs);
  if (!registry) return refuse("undrain", registry.error());
  if (const auto done = runtime::undrain_node(**registry, NodeId{arguments.node}); !done)
    return refuse("undrain", done.error());
  fmt::print("node {} does not drain any more\n", arguments.node);
  return bench::kExitOk;
}

// ---- limits ----

// The node has as much of its GPU's memory as pages take that have not moved yet.
Progress limit_progress(const std::optional<ClusterNode>& node, std::uint64_t bytes) {
  if (!node) return {"has left the cluster", bench::kExitFailed};
  const std::uint64_t limit = node->hbm_limit ? node->hbm_limit->bytes : node->record.lends.hbm;
  if (limit != bytes)
    return {fmt::format("is limited to {} by another order", format_bytes(limit)), bench::kExitFailed};
  if (!node->holds) return {"has not said what it holds", std::nullopt};
  const std::string taken = format_bytes(node->holds->hbm_taken);
  if (node->holds->hbm_taken <= bytes) return {fmt::format("takes {} of its GPU", taken), bench::kExitOk};
  return {fmt::format("takes {} of its GPU still, with {} of pages", taken, format_bytes(node->holds->hbm)),
          std::nullopt};
}

int limit(const Arguments& arguments) {
  const auto access = arguments.registry.access();
  if (!access) return refuse("limit", access.error());
  const auto registry = runtime::RegistryClient::open(*access, kMostUs);
  if (!registry) return refuse("limit", registry.error());
  const auto check = arguments.force ? runtime::RoomCheck::skipped : runtime::RoomCheck::required;
  const auto shrinks =
      runtime::limit_hbm(**registry, NodeId{arguments.node}, arguments.hbm_bytes, check, await_figures());
  if (!shrinks) return refuse("limit", shrinks.error());
  fmt::print("node {} lends {} of HBM at most{}\n", arguments.node, format_bytes(arguments.hbm_bytes),
             *shrinks ? "; programs move away what is beyond that" : "");
  std::fflush(stdout);
  if (!arguments.wait) return bench::kExitOk;
  return wait_for(
      "limit", *access, arguments,
      [&](const std::optional<ClusterNode>& node) { return limit_progress(node, arguments.hbm_bytes); },
      [](const auto&, const ClusterNode& node) { return runtime::limit_standstill(node); });
}

// "64MiB" or "64MiB/s".
std::uint64_t parse_rate(std::string text) {
  if (text.ends_with("/s")) text.resize(text.size() - 2);
  const auto bytes = parse_bytes(text);
  if (!bytes) throw CLI::ValidationError("--rate", bytes.error().message);
  if (*bytes == 0) throw CLI::ValidationError("--rate", "0 moves nothing: give the bytes of a second, such as 64MiB");
  return *bytes;
}

std::uint64_t parse_node(const std::string& text) {
  std::uint64_t number = 0;
  if (cluster::parse_decimal(text, number) && number != 0) return number;
  throw CLI::ValidationError(
      "ID", fmt::format("'{}' is no node's number, such as 1: `vmem node list` shows the numbers, and `vmem cluster "
                        "status` shows those of its daemons",
                        printable(text, kMostBytes)));
}

void add_id(CLI::App& app, Arguments& arguments) {
  app.add_option_function<std::string>(
         "ID", [&arguments](const std::string& text) { arguments.node = parse_node(text); },
         "The node's number, as `vmem node list` says it")
      ->required()
      ->type_name("");
}

void add_drain(CLI::App& app, Arguments& arguments) {
  add_id(app, arguments);
  app.add_option_function<std::string>(
         "--rate", [&arguments](const std::string& text) { arguments.order.rate = parse_rate(text); },
         "How much each program moves in a second at most (default: 256MiB)")
      ->type_name("SIZE");
  app.add_flag("--wait", arguments.wait, "Says how much the node still holds, until that is nothing");
  app.add_flag("--exit", arguments.order.exit, "The daemon ends by itself once it holds nothing");
  app.add_flag("--force", arguments.order.force,
               "Also if the other nodes have no room for what it holds: the rest stays until there is some, but for "
               "copies of published regions of which another daemon has one");
  arguments.registry.add_to(app);
}

void add_limit(CLI::App& app, Arguments& arguments) {
  add_id(app, arguments);
  app.add_option_function<std::string>(
         "--hbm",
         [&arguments](const std::string& text) {
           const auto bytes = parse_bytes(text);
           if (!bytes) throw CLI::ValidationError("--hbm", bytes.error().message);
           arguments.hbm_bytes = *bytes;
         },
         "How much HBM it lends from now on, in steps of 64MiB; at most what its daemon was started with")
      ->type_name("SIZE")
      ->required();
  app.add_flag("--wait", arguments.wait, "Says how much of its GPU it takes, until that is within the limit");
  app.add_flag("--force", arguments.force,
               "Also if there is no room for the pages that have to leave: the rest stays until there is some");
  arguments.registry.add_to(app);
}

}  // namespace

Command add_node(CLI::App& app) {
  app.require_subcommand(1);
  const auto arguments = std::make_shared<Arguments>();
  const auto command = std::make_shared<int (*)(const Arguments&)>(&list);
  const auto add = [&](const char* name, const char* help, int (*body)(const Arguments&)) {
    CLI::App* const sub = app.add_subcommand(name, help);
    sub->callback([command, body] { *command = body; });
    return sub;
  };
  CLI::App* const lists = add("list", "List the nodes: what each is, where, and what it lends", &list);
  arguments->registry.add_to(*lists);
  lists->add_flag("--json", arguments->json, "As JSON");
  add_drain(*add("drain", "Have what a node holds moved to others, so that it can end without loss", &drain),
            *arguments);
  CLI::App* const stays = add("undrain", "Have a node that drains be used again", &undrain);
  add_id(*stays, *arguments);
  arguments->registry.add_to(*stays);
  add_limit(*add("limit", "Have a node lend less of its GPU's memory, or as much as before again", &limit), *arguments);
  app.footer("Exit codes: 0 done; 2 bad options; 3 the registry did not answer, or the node did not stay to the end.");
  return [arguments, command] { return (*command)(*arguments); };
}

}  // namespace vmem::tools
