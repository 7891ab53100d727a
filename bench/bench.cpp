#include "bench/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/log.hpp"
#include "base/options.hpp"
#include "bench/build_info.hpp"
#include "bench/table.hpp"

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
    {"demo", "stream at 4 times the HBM budget, explained", run_demo, print_after_demo},
    {"all", "every figure of the project's table of goals", run_all},
};

std::string list_scenarios() {
  std::string list;
  for (const Scenario& scenario : kScenarios) list += fmt::format("  {:<8} {}\n", scenario.name, scenario.summary);
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
  if (settings.scenario == "file" && settings.input.empty())
    return bad("the file scenario needs a file; name one with --input");
  return {};
}

// Tiers that are measured without a runtime say as much as one would.
Status set_log_level(const Settings& settings) {
  auto given = settings.runtime_options;
  std::erase_if(given, [](const auto& option) { return option.first != "log"; });
  VMEM_ASSIGN(const Options options, resolve_options(given));
  VMEM_ASSIGN(const log::Level level, log::parse_level(options.log_level));
  log::set_level(level);
  return {};
}

Status run_checked(const Scenario& scenario, const Settings& settings, std::vector<Record>& records) {
  VMEM_TRY(check_settings(settings));
  VMEM_TRY(check_json_path(settings));
  VMEM_TRY(set_log_level(settings));
  VMEM_ASSIGN(const auto gpu, Gpu::open(settings.driver, settings.device));
  print_heading(settings, *gpu);
  VMEM_ASSIGN(const Launcher launcher, Launcher::load(*gpu));
  Progress progress(stderr);
  Context context{settings, *gpu, launcher, progress, records};
  const Status status = scenario.run(context);
  progress.end();
  // What was measured before a failure is shown and kept all the same.
  if (!records.empty()) fmt::print("{}", format_table(records, *gpu));
  if (status && scenario.print_after) scenario.print_after(*gpu);
  std::fflush(stdout);
  VMEM_TRY(save_records(records, *gpu, settings));
  return status;
}

}  // namespace

std::span<const Scenario> scenarios() { return kScenarios; }

int run(const Settings& settings) {
  const auto scenario = std::find_if(std::begin(kScenarios), std::end(kScenarios),
                                     [&](const Scenario& s) { return settings.scenario == s.name; });
  if (scenario == std::end(kScenarios)) {
    fmt::print(stderr, "vmem bench: there is no scenario '{}'; choose one of\n{}", settings.scenario, list_scenarios());
    return kExitBadOptions;
  }
  std::vector<Record> records;
  if (const Status status = run_checked(*scenario, settings, records); !status) return report_failure(status.error());
  const bool verified = std::all_of(records.begin(), records.end(), [](const Record& r) { return r.verified; });
  return verified ? kExitOk : kExitMismatch;
}

}  // namespace vmem::bench
