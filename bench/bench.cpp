#include "bench/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/log.hpp"
#include "bench/build_info.hpp"

namespace vmem::bench {
namespace {

constexpr Scenario kScenarios[] = {
    {"stream", "works through a region larger than HBM, piece by piece: read-only, read-write", run_stream},
    {"scale", "stream at 64 times the HBM budget against 4 times, per byte moved", run_scale},
    {"block", "one launch reads a region larger than HBM: one contiguous block a thread block, then strided",
     run_block},
    {"random", "one launch reads 128-byte lines at random from a region larger than HBM", run_random},
    {"file", "byte histogram and checksum of a file (--input), computed on the GPU from a region", run_file},
    {"map", "reads a mapped file larger than HBM from end to end, against the disk alone; --input names its folder",
     run_map},
    {"matmul", "out-of-core matrix product, fp32", run_matmul},
    {"hit", "acquire and release of what is already in HBM: latency, and rate of eight threads", run_hit},
    {"lookup", "address to page over a range of 1 TiB; metadata a page; time to reserve", run_lookup},
    {"alloc", "malloc and free of cached sizes against the driver's stream-ordered allocator", run_alloc},
    {"driver", "what single driver calls cost on this machine", run_driver},
    {"peer", "what does not fit lies in another GPU's HBM (--peers): streamed, and read at 1.8 times the HBM budget",
     run_peer},
    {"tier", "pages through the disk tier (--nvme), out and in, against fio on the same disk", run_tier},
    {"compress", "pages through the disk tier (--nvme), compressed, against the same pages as they are", run_compress},
    {"net", "pages through the remote tier, to a second node here or --remote and back, against ucx_perftest", run_net},
    {"cluster", "published pages: all, one alone, for 1 to 3 readers; overflow to a daemon; its drain (--rows)",
     run_cluster},
    {"lend", "pages to a daemon's HBM and back, against pages to a daemon's memory; --working-set is how much",
     run_lend},
    {"demo", "stream at 4 times the HBM budget, explained", run_demo, print_after_demo},
    {"all", "every figure of the project's table of goals", run_all},
    {.name = "reader", .summary = "one reading process of cluster's fan-out", .run = run_reader, .is_internal = true},
};

std::string list_scenarios() {
  std::string list;
  for (const Scenario& scenario : kScenarios)
    if (!scenario.is_internal) list += fmt::format("  {:<8} {}\n", scenario.name, scenario.summary);
  return list;
}

int report_failure(const Error& error) {
  fmt::print(stderr, "vmem bench: {}\n", error.message);
  return error.status == VMEM_ERROR_INVALID_OPTION ? kExitBadOptions : kExitFailed;
}

void print_heading(const Settings& settings, const Gpu& gpu) {
  fmt::print("vmem bench {} on {}{} (driver {}, {}), commit {}\n", settings.scenario, gpu.name(),
             gpu.emulated() ? " [emulated: figures say nothing about a GPU]" : "", gpu.driver().version(),
             gpu.driver().path(), kCommit);
  std::fflush(stdout);
}

Status check_settings(const Settings& settings) {
  const auto bad = [](std::string message) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(message)); };
  if (settings.mode != "ro" && settings.mode != "rw" && settings.mode != "both")
    return bad(fmt::format("--mode {} is unknown; give ro, rw or both", settings.mode));
  if (settings.passes < 0 || settings.passes > 1'000'000)
    return bad(
        fmt::format("--passes {} is out of range; give 1 to 1000000, or 0 to choose by itself", settings.passes));
  if (settings.repeats < 1 || settings.repeats > 1000)
    return bad(fmt::format("--repeats {} is out of range; give 1 to 1000", settings.repeats));
  if (settings.chunk_bytes && (*settings.chunk_bytes == 0 || *settings.chunk_bytes % 4096 != 0))
    return bad(fmt::format("--chunk {} is not a multiple of 4 KiB; give for example 32MiB", *settings.chunk_bytes));
  if (settings.scenario != "cluster" && (!settings.rows.empty() || !settings.page_server.empty()))
    return bad(
        fmt::format("--rows and --page-server are for the cluster scenario, and {} was asked for", settings.scenario));
  if (settings.scenario == "file" && settings.input.empty())
    return bad("the file scenario needs a file; name one with --input");
  return {};
}

// Sets the level here because some scenarios measure a tier without starting a runtime.
Status set_log_level(const Settings& settings) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"log"}));
  VMEM_ASSIGN(const log::Level level, log::parse_level(options.log_level));
  log::set_level(level);
  return {};
}

Result<ExitCode> run_checked(const Scenario& scenario, const Settings& settings) {
  VMEM_TRY(check_settings(settings));
  VMEM_TRY(check_json_path(settings));
  VMEM_TRY(set_log_level(settings));
  VMEM_ASSIGN(const auto gpu, Gpu::open(settings.driver, settings.device));
  print_heading(settings, *gpu);
  VMEM_ASSIGN(const Launcher launcher, Launcher::load(*gpu));
  Progress progress(stderr);
  std::vector<Record> records;
  RowPrinter rows(*gpu);
  Context context{settings, *gpu, launcher, progress, records, rows};
  // Until the scenario has steps to show.
  progress.begin(fmt::format("measuring {}", scenario.name), 1);
  const Status status = scenario.run(context);
  // Records measured before a failure are still shown and saved.
  context.show_rows();
  fmt::print("{}", format_notes(records));
  if (status && scenario.print_after) scenario.print_after(*gpu);
  std::fflush(stdout);
  VMEM_TRY(save_records(records, *gpu, settings, Saving::final));
  VMEM_TRY(status);
  return exit_code(records, *gpu, settings.check);
}

}  // namespace

std::span<const Scenario> scenarios() { return kScenarios; }

ExitCode exit_code(std::span<const Record> records, const Gpu& gpu, bool check) {
  const auto count = [&](std::optional<bool> met) {
    return std::ranges::count_if(records, [&](const Record& r) { return r.goal && goal_met(r, gpu) == met; });
  };
  const auto above = std::ranges::count_if(records, limit_exceeded);
  if (check)
    fmt::print(stderr, "vmem bench: goals: {} met, {} missed, {} not judged{}; {} above every sample of their limit\n",
               count(true), count(false), count(std::nullopt),
               gpu.emulated() ? " (they need a real GPU, or a link between hosts)" : "", above);
  const bool verified = std::ranges::all_of(records, &Record::verified);
  const bool missed = check && count(false) + above > 0;
  return verified && !missed ? kExitOk : kExitMismatch;
}

int run(const Settings& settings) {
  const auto scenario = std::find_if(std::begin(kScenarios), std::end(kScenarios),
                                     [&](const Scenario& s) { return settings.scenario == s.name; });
  if (scenario == std::end(kScenarios)) {
    fmt::print(stderr, "vmem bench: there is no scenario '{}'; choose one of\n{}", settings.scenario, list_scenarios());
    return kExitBadOptions;
  }
  const Result<ExitCode> code = run_checked(*scenario, settings);
  return code ? *code : report_failure(code.error());
}

}  // namespace vmem::bench
