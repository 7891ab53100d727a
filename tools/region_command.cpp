// vmem region: the published regions of a cluster.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/counted.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "runtime/cluster/region_list.hpp"
#include "runtime/cluster/visitor.hpp"
#include "tools/commands.hpp"
#include "tools/registry_flags.hpp"

namespace vmem::tools {
namespace {

using cluster::directory::RegionRecord;
using runtime::ListedRegion;

constexpr std::uint64_t kMostUs = 10'000'000;
constexpr double kMostWaitS = 86'400;

struct Arguments {
  RegistryFlags registry;
  bool json = false;
  std::string name, secret, fabric;
  double wait_s = 30;
};

int refuse(const char* command, const Error& error) {
  fmt::print(stderr, "vmem region {}: {}\n", command, printable(error.message, 4000));
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

std::string words(const ListedRegion& region) {
  const RegionRecord& record = region.record;
  std::string more;
  if (record.copies != 0) more += fmt::format(", {}", counted(record.copies, "copy", "copies"));
  constexpr std::uint64_t kYear3000 = 32'503'680'000;
  if (record.expires_s != 0 && record.expires_s < kYear3000)
    more += fmt::format(", until {:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(record.expires_s)));
  if (!record.readers.empty())
    more += fmt::format(", also for {}", printable(fmt::format("{}", fmt::join(record.readers, ", ")), 400));
  if (region.members == 0) more += ", no node has it any more";
  if (record.removed) more += ", is being removed";
  return fmt::format("{:<24} version {}: {} in {} of {}, home {}{}, {} part{}", printable(record.name, 128),
                     record.version, format_bytes(record.bytes), counted(record.pages, "page", "pages"),
                     format_bytes(record.page_bytes), number(record.home), region.home_is_member ? "" : " (gone)",
                     counted(region.members, "node takes", "nodes take"), more);
}

// Without its key, which proves its pages.
nlohmann::json json_of(const ListedRegion& region) {
  const RegionRecord& record = region.record;
  return {{"name", record.name},
          {"version", record.version},
          {"serial", static_cast<std::uint64_t>(record.serial)},
          {"bytes", record.bytes},
          {"page_bytes", record.page_bytes},
          {"pages", record.pages},
          {"tenant", record.tenant},
          {"readers", record.readers},
          {"publisher", number(record.publisher)},
          {"home", number(record.home)},
          {"home_is_member", region.home_is_member},
          {"members", region.members},
          {"copies", record.copies},
          {"expires_s", record.expires_s},
          {"is_being_removed", record.removed}};
}

int list(const Arguments& arguments) {
  const auto access = arguments.registry.access();
  if (!access) return refuse("list", access.error());
  const auto regions = runtime::list_regions(*access, kMostUs);
  if (!regions) return refuse("list", regions.error());
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const ListedRegion& region : *regions) all.push_back(json_of(region));
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return bench::kExitOk;
  }
  fmt::print("{}\n", counted(regions->size(), "published region", "published regions"));
  for (const ListedRegion& region : *regions) fmt::print("{}\n", words(region));
  return bench::kExitOk;
}

// Where nobody has published the name, nobody has to be asked.
Status remove(const Arguments& arguments) {
  VMEM_TRY(cluster::directory::check_name(arguments.name));
  VMEM_ASSIGN(const auto access, arguments.registry.access());
  VMEM_ASSIGN(const auto regions, runtime::list_regions(access, kMostUs));
  const auto named = [&](const ListedRegion& region) { return region.record.name == arguments.name; };
  if (std::ranges::none_of(regions, named))
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("no region is published as '{}'; `vmem region list` shows the names", arguments.name));
  runtime::Visitor::Config config{.registry = access,
                                  .secret = option_value(arguments.secret, "secret"),
                                  .certificates = access.certificates,
                                  .fabric = option_value(arguments.fabric, "fabric")};
  VMEM_ASSIGN(const auto visitor, runtime::Visitor::join(config, kMostUs));
  return visitor->remove(arguments.name, std::uint64_t(arguments.wait_s * 1e6));
}

int run_remove(const Arguments& arguments) {
  if (const Status removed = remove(arguments); !removed) return refuse("rm", removed.error());
  fmt::print("'{}' is removed; who has it open keeps the pages that are there\n", printable(arguments.name, 128));
  return bench::kExitOk;
}

}  // namespace

Command add_region(CLI::App& app) {
  app.require_subcommand(1);
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* const lists =
      app.add_subcommand("list", "List the published regions: sizes, homes, how many nodes take part");
  arguments->registry.add_to(*lists);
  lists->add_flag("--json", arguments->json, "As JSON");
  CLI::App* const removes = app.add_subcommand("rm", "Remove a published region: nobody can open it from then on");
  arguments->registry.add_to(*removes);
  removes->add_option("NAME", arguments->name, "As it was published")->required();
  removes->add_option("--secret", arguments->secret, "The secret that its publisher proves (VMEM_SECRET)")
      ->type_name("FILE");
  removes->add_option("--fabric", arguments->fabric, "As for programs (VMEM_FABRIC)")->type_name("DEVICES");
  removes->add_option("--wait", arguments->wait_s, "Seconds to wait for its home")
      ->check(CLI::Range(0.1, kMostWaitS))
      ->capture_default_str();
  app.footer(
      "Exit codes: 0 done; 2 bad options, another tenant's region, or refused credentials; 3 no such region, or no "
      "answer.");
  return [arguments, removes] { return removes->parsed() ? run_remove(*arguments) : list(*arguments); };
}

}  // namespace vmem::tools
