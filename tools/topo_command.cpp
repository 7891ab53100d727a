#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/exit_code.hpp"
#include "tools/commands.hpp"
#include "tools/json_file.hpp"
#include "tools/topo/topo.hpp"

namespace vmem::tools {
namespace {

int refuse(const Error& error) {
  fmt::print(stderr, "vmem topo: {}\n", error.message);
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

int run(const topo::Request& request, const std::string& json_path) {
  if (const Status able = check_json_file(json_path); !able) return refuse(able.error());
  const auto answer = topo::examine(request);
  if (!answer) return refuse(answer.error());
  if (!is_standard_output(json_path)) fmt::print("{}", topo::to_text(*answer));
  if (const Status written = write_json_file(json_path, topology::to_json(answer->saved)); !written)
    return refuse(written.error());
  return bench::kExitOk;
}

constexpr const char* kFooter = R"(
Devices, NVLinks, PCIe switches, NUMA nodes, disks and network cards are found through the driver, NVML and hwloc; what one of
them would have said, were it there, is listed as not known. Rates are measured once, with the driver's copies (a second for
each GPU, at most 256 MiB of each memory), and kept in a file that programs under vmem read. They are measured anew when the
machine, the driver or its GPUs have changed, or the file is damaged. Without a CUDA driver or a GPU it shows NUMA nodes, disks
and network cards, measures the disks of --disk, and keeps nothing.

Exit codes: 0 printed; 2 bad options; 3 the driver or the machine failed.)";

}  // namespace

Command add_topo(CLI::App& app) {
  const auto request = std::make_shared<topo::Request>();
  const auto json_path = std::make_shared<std::string>();
  app.add_option("--driver", request->driver, "auto (the CUDA driver), emulated, or a path")
      ->capture_default_str()
      ->envname("VMEM_DRIVER");
  app.add_option("--topology", request->file, "Where rates are kept: auto (the user's cache folder), off, or a file")
      ->capture_default_str()
      ->envname("VMEM_TOPOLOGY");
  app.add_flag("--measure", request->measure, "Measure, whatever was measured before");
  app.add_option("--disk", request->directories, "Measure the disk of this directory too; may be given several times")
      ->type_name("DIRECTORY");
  add_json(app, *json_path, "nodes, links and rates");
  app.footer(kFooter);
  return [request, json_path] { return run(*request, *json_path); };
}

}  // namespace vmem::tools
