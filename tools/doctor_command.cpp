#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "bench/exit_code.hpp"
#include "runtime/cluster/node_list.hpp"
#include "tools/commands.hpp"
#include "tools/doctor/doctor.hpp"
#include "tools/json_file.hpp"
#include "tools/registry_flags.hpp"

namespace vmem::tools {
namespace {

constexpr std::uint64_t kRegistryUs = 5'000'000;

// Only where a cluster is configured.
void check_cluster(doctor::Report& report, const RegistryFlags& registry) {
  constexpr const char* kTopic = "cluster";
  const auto access = registry.access();
  if (!access) return;
  const auto nodes = runtime::list_nodes(*access, kRegistryUs);
  if (!nodes)
    return report.problem(kTopic, nodes.error().message,
                          "start the cluster's etcd, or correct --cluster (VMEM_CLUSTER)");
  const auto daemons =
      std::ranges::count_if(*nodes, [](const runtime::ClusterNode& node) { return node.record.kind == "daemon"; });
  const std::string found = fmt::format("the registry of cluster '{}' answers; nodes: {}, of which daemons: {}",
                                        access->cluster(), nodes->size(), daemons);
  if (daemons != 0) return report.ok(kTopic, found);
  report.note(kTopic, found, "if that is the cluster's name, run `vmem daemon --cluster ...` on its nodes");
}

}  // namespace

Command add_doctor(CLI::App& app) {
  struct Flags {
    std::string driver = "auto";
    std::string json_path;
    RegistryFlags registry;
  };
  const auto flags = std::make_shared<Flags>();
  app.add_option("--driver", flags->driver, "auto (the CUDA driver), emulated, or a path")
      ->capture_default_str()
      ->envname("VMEM_DRIVER");
  flags->registry.add_to(app);
  add_json(app, flags->json_path, "the findings");
  app.footer("Exit codes: 0 vmem is usable here; 1 it is not; 2 bad options.");
  return [flags] {
    const auto refuse = [](const Status& why) {
      fmt::print(stderr, "vmem doctor: {}\n", why.error().message);
      return int{bench::kExitBadOptions};
    };
    if (const Status able = check_json_file(flags->json_path); !able) return refuse(able);
    doctor::Report report = doctor::examine(flags->driver);
    check_cluster(report, flags->registry);
    if (!is_standard_output(flags->json_path)) fmt::print("{}", report.to_text());
    if (const Status written = write_json_file(flags->json_path, report.to_json().dump(2) + "\n"); !written)
      return refuse(written);
    return report.usable() ? 0 : 1;
  };
}

}  // namespace vmem::tools
