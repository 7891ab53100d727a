#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "base/sizes.hpp"
#include "bench/bench.hpp"
#include "tools/commands.hpp"
#include "tools/json_file.hpp"

namespace vmem::tools {
namespace {

constexpr const char* kFooter = R"(
Every figure is printed beside its limit, which the same run measured: bare copies, the same kernel reading pinned memory
in place, everything resident. Over a link the figure is the bytes that crossed it. On a machine without a CUDA driver the
emulated one is used, and figures say so.

Sizes are written 16GiB (or 16G), 512MiB, 2MB or in bytes.
Exit codes: 0 all measured and verified; 1 wrong data (the first bad offset is printed), or with --check a missed goal or a
figure above its limit; 2 bad options; 3 the machine, the driver or the runtime failed.)";

// A flag whose value is a size, with the errors of vmem_init.
void add_size(CLI::App& app, const char* flag, std::optional<std::uint64_t>& to, const char* help) {
  app.add_option_function<std::string>(
         flag,
         [&to, flag](const std::string& text) {
           const auto bytes = parse_bytes(text);
           if (!bytes) throw CLI::ValidationError(flag, bytes.error().message);
           if (*bytes == 0) throw CLI::ValidationError(flag, "0 bytes were asked for; give a size such as 4GiB");
           to = *bytes;
         },
         help)
      ->type_name("SIZE");
}

void add_runtime_options(CLI::App& app, bench::Settings& settings) {
  app.add_option_function<std::vector<std::string>>(
         "--option",
         [&settings](const std::vector<std::string>& given) {
           for (const std::string& text : given) {
             const auto equals = text.find('=');
             if (equals == std::string::npos || equals == 0)
               throw CLI::ValidationError("--option",
                                          fmt::format("'{}' is not NAME=VALUE; `vmem options` lists the names", text));
             settings.runtime_options.emplace_back(text.substr(0, equals), text.substr(equals + 1));
           }
         },
         "An option of the runtime, as NAME=VALUE; may be given several times")
      ->type_name("NAME=VALUE");
}

std::string describe_scenarios() {
  std::string text = "Scenarios:\n";
  for (const bench::Scenario& scenario : bench::scenarios())
    if (!scenario.is_internal) text += fmt::format("  {:<8} {}\n", scenario.name, scenario.summary);
  return text;
}

}  // namespace

Command add_bench(CLI::App& app, const std::string& command_line) {
  const auto settings = std::make_shared<bench::Settings>();
  settings->command = command_line;
  app.add_option("SCENARIO", settings->scenario, "What to measure")->required();
  app.add_option("--mode", settings->mode, "stream, peer: ro, rw or both")->capture_default_str();
  app.add_option_function<double>(
      "--ratio", [settings](const double& ratio) { settings->ratio = ratio; },
      "Working set to HBM budget; with --remote or --nvme to HBM and host memory together (default: 4; matmul 3, "
      "hit 2, alloc 1, scale 64)");
  add_size(app, "--hbm", settings->hbm_bytes, "HBM budget (default: 4 GiB; emulated 64 MiB)");
  add_size(app, "--host", settings->host_bytes, "Pinned host pool (default: what the working set needs; peer: 1 GiB)");
  app.add_option_function<std::string>(
         "--peers", [settings](const std::string& text) { settings->runtime_options.emplace_back("peers", text); },
         "GPUs that lend memory, as the runtime's option; peer: those to measure (default: the first that can be "
         "reached)")
      ->type_name("GPU:SIZE,...");
  app.add_option_function<std::string>(
         "--nvme", [settings](const std::string& text) { settings->runtime_options.emplace_back("nvme", text); },
         "Files for pages beyond memory, as the runtime's option; tier: the first is measured, compress: all")
      ->type_name("DIR:SIZE,...");
  app.add_option_function<std::string>(
         "--remote", [settings](const std::string& text) { settings->runtime_options.emplace_back("remote", text); },
         "Other nodes for pages beyond memory, as the runtime's option; net: the first is measured alone, all by the "
         "stream")
      ->type_name("HOST:PORT,...");
  add_size(app, "--disk-rate", settings->disk_bytes_s, "compress: slows the disk down to this a second, each way");
  add_size(app, "--working-set", settings->working_set_bytes, "Working set; gives the budget with --ratio");
  add_size(app, "--pages", settings->page_bytes, "Page size (default: by region size)");
  add_size(app, "--chunk", settings->chunk_bytes, "Bytes named by one acquire of stream and file (default: a page)");
  app.add_option("--passes", settings->passes, "Passes over the working set in a sample; 0: by itself")
      ->capture_default_str();
  app.add_option("--repeats", settings->repeats, "Samples; the limit is measured before, between and after them")
      ->capture_default_str();
  app.add_option("--seed", settings->seed, "Seed of the data and of random places")->capture_default_str();
  app.add_option("--device", settings->device, "CUDA device")->capture_default_str();
  app.add_option("--driver", settings->driver, "auto (emulated where there is no GPU), emulated, or a path")
      ->capture_default_str()
      ->envname("VMEM_DRIVER");
  app.add_option("--input", settings->input, "file: the file to load; map: the folder for its file")->type_name("FILE");
  app.add_option("--rows", settings->rows, "cluster: those to measure, of published, page, fanout, overflow, drain")
      ->delimiter(',')
      ->type_name("NAME,...");
  app.add_option("--page-server", settings->page_server,
                 "cluster: a plain server that answers each byte with a page, on the host of the daemon that "
                 "VMEM_CLUSTER names: the limit of one page over a link")
      ->type_name("HOST:PORT");
  add_json(app, settings->json_path, "the records");
  app.add_flag("--check", settings->check, "Exit with 1 if a figure misses its goal, or beats what should limit it");
  add_runtime_options(app, *settings);
  app.footer(describe_scenarios() + kFooter);
  return [settings] { return bench::run(*settings); };
}

}  // namespace vmem::tools
