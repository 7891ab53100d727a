// vmem trace: records and shows traces.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/option_parse.hpp"
#include "base/printable.hpp"
#include "bench/exit_code.hpp"
#include "migration/mover_options.hpp"
#include "replay/replay.hpp"
#include "tools/commands.hpp"
#include "tools/json_file.hpp"
#include "tools/trace/reports.hpp"
#include "trace/file.hpp"

namespace vmem::tools {
namespace {

constexpr double kEver = 1e9;

struct Arguments {
  std::string file, output, timeline;
  bool events = false, share_pages = true, try_in_place = true, look_ahead = true;
  double from_s = 0, until_s = kEver;
  std::string hbm, page;
  double in_gb_per_s = 0, out_gb_per_s = 0, pinned_gb_per_s = 0;
  std::uint32_t device = 0;
};

int refuse(const char* command, const std::string& why) {
  fmt::print(stderr, "vmem trace {}: {}\n", command, why);
  return bench::kExitBadOptions;
}

int show(const Arguments& arguments) {
  const auto trace = trace::read(arguments.file);
  if (!trace) return refuse("show", trace.error().message);
  if (!arguments.events) {
    fmt::print("{}", summary_of(*trace, arguments.file));
    return bench::kExitOk;
  }
  for (const trace::Event& event : trace->events) {
    const double at_s = double(event.at_ns) * 1e-9;
    if (at_s >= arguments.from_s && at_s < arguments.until_s) fmt::print("{}", words_of(*trace, event));
  }
  return bench::kExitOk;
}

int export_it(const Arguments& arguments) {
  const auto trace = trace::read(arguments.file);
  if (!trace) return refuse("export", trace.error().message);
  std::error_code code;
  if (std::filesystem::equivalent(arguments.file, arguments.output, code))
    return refuse("export", "--output names the trace itself; name another file");
  if (!trace->cut_short.empty()) fmt::print(stderr, "vmem trace export: {}\n", trace->cut_short);
  const auto written = export_chrome(*trace, arguments.output);
  return written ? bench::kExitOk : refuse("export", written.error().message);
}

int bound(const Arguments& arguments) {
  const auto trace = trace::read(arguments.file);
  if (!trace) return refuse("bound", trace.error().message);
  if (!trace->cut_short.empty()) fmt::print(stderr, "vmem trace bound: {}\n", trace->cut_short);
  const auto hbm = parse_size(arguments.hbm, {.least = std::uint64_t{2} << 20});
  if (!hbm) return refuse("bound", fmt::format("--hbm is '{}': {}", printable(arguments.hbm), hbm.error().message));
  const auto& devices = trace->header.devices;
  if (arguments.device >= devices.size())
    return refuse("bound", fmt::format("--device is {}, and {} were recorded", arguments.device, devices.size()));
  const trace::Device& device = devices[arguments.device];
  const auto rate = [](double given, std::uint64_t measured) { return given > 0 ? given * 1e9 : double(measured); };
  const trace::Machine machine{.hbm_bytes = *hbm,
                               .in_bytes_per_s = rate(arguments.in_gb_per_s, device.in_bytes_per_s),
                               .out_bytes_per_s = rate(arguments.out_gb_per_s, device.out_bytes_per_s)};
  if (machine.in_bytes_per_s <= 0 || machine.out_bytes_per_s <= 0)
    return refuse("bound", "the trace does not say how fast the link is: give --in and --out, in GB/s");
  const trace::Extract part{.from_ns = std::uint64_t(arguments.from_s * 1e9),
                            .until_ns = std::uint64_t(arguments.until_s * 1e9),
                            .device = arguments.device};
  const auto text = bound_of(*trace, part, machine);
  if (!text) return refuse("bound", text.error().message);
  fmt::print("{}", *text);
  return bench::kExitOk;
}

// What a run takes with so much HBM, by the mover, the policy and the allocator themselves.
int replay(const Arguments& arguments) {
  const auto trace = trace::read(arguments.file);
  if (!trace) return refuse("replay", trace.error().message);
  if (!trace->cut_short.empty()) fmt::print(stderr, "vmem trace replay: {}\n", trace->cut_short);
  replay::Setting setting;
  const auto hbm = parse_size(arguments.hbm, {.least = kSmallestHbm});
  if (!hbm) return refuse("replay", fmt::format("--hbm is '{}': {}", printable(arguments.hbm), hbm.error().message));
  setting.hbm_bytes = *hbm;
  if (!arguments.page.empty()) {
    const auto page = parse_size(arguments.page, {.least = std::uint64_t{2} << 20, .most = std::uint64_t{256} << 20});
    if (!page)
      return refuse("replay", fmt::format("--page is '{}': {}", printable(arguments.page), page.error().message));
    if (!std::has_single_bit(*page)) return refuse("replay", "--page is no power of two");
    setting.page_bytes = *page;
  }
  setting.from_ns = std::uint64_t(arguments.from_s * 1e9);
  setting.share_pages = arguments.share_pages;
  setting.try_in_place = arguments.try_in_place;
  take_rate(setting.chain.link.in_bytes_per_s, arguments.in_gb_per_s);
  take_rate(setting.chain.link.out_bytes_per_s, arguments.out_gb_per_s);
  take_rate(setting.pinned_bytes_per_s, arguments.pinned_gb_per_s);
  setting.look_ahead = arguments.look_ahead;
  replay::Timeline timeline;
  if (!arguments.timeline.empty()) setting.timeline = &timeline;
  if (const Status able = check_json_file(arguments.timeline, arguments.file); !able)
    return refuse("replay", able.error().message);
  const auto measured = replay::replay(*trace, setting);
  if (!measured) return refuse("replay", measured.error().message);
  if (!is_standard_output(arguments.timeline)) fmt::print("{}", words_of(*measured));
  if (setting.timeline != nullptr) {
    if (const Status written = write_json_file(arguments.timeline, json_of(timeline)); !written)
      return refuse("replay", written.error().message);
  }
  return measured->wrong_loads == 0 ? bench::kExitOk : bench::kExitMismatch;
}

void add_file(CLI::App& app, std::string& file) { app.add_option("FILE", file, "The trace")->required(); }
CLI::Option* add_seconds(CLI::App& app, const char* name, double& value, const char* help) {
  return app.add_option(name, value, help)->check(CLI::Range(0.0, kEver))->type_name("SECONDS");
}
CLI::Option* add_from(CLI::App& app, Arguments& arguments) {
  return add_seconds(app, "--from", arguments.from_s, "The first second of the trace that counts");
}
// Their options: which part of the trace.
std::array<CLI::Option*, 2> add_part(CLI::App& app, Arguments& arguments) {
  return {add_from(app, arguments), add_seconds(app, "--until", arguments.until_s, "The first second that does not")};
}

CLI::App* add_show(CLI::App& app, Arguments& arguments) {
  CLI::App* const shown = app.add_subcommand("show", "Say what a trace holds");
  add_file(*shown, arguments.file);
  CLI::Option* const events = shown->add_flag("--events", arguments.events, "One line for each event instead");
  for (CLI::Option* part : add_part(*shown, arguments)) part->needs(events);
  return shown;
}

CLI::App* add_export(CLI::App& app, Arguments& arguments) {
  CLI::App* const exported =
      app.add_subcommand("export", "Write a trace as JSON for https://ui.perfetto.dev or chrome://tracing");
  add_file(*exported, arguments.file);
  exported->add_option("-o,--output", arguments.output, "Where it goes; - for standard output")
      ->required()
      ->type_name("FILE");
  return exported;
}

CLI::App* add_bound(CLI::App& app, Arguments& arguments) {
  CLI::App* const bounded = app.add_subcommand("bound",
                                               "Say what any runtime has to move, and how long it takes, with less "
                                               "HBM; and what one that knows the future can do");
  add_file(*bounded, arguments.file);
  bounded->add_option("--hbm", arguments.hbm, "So much HBM")->required()->type_name("SIZE");
  const auto rate = [&](const char* name, double& value, const char* help) {
    bounded->add_option(name, value, help)->check(CLI::PositiveNumber)->type_name("GB/s");
  };
  rate("--in", arguments.in_gb_per_s, "Rate from host memory; default: as measured on the machine that recorded it");
  rate("--out", arguments.out_gb_per_s, "Rate to host memory");
  bounded->add_option("--device", arguments.device, "The device, by its place among the recorded ones")->type_name("N");
  add_part(*bounded, arguments);
  return bounded;
}

CLI::App* add_replay(CLI::App& app, Arguments& arguments) {
  CLI::App* const replayed =
      app.add_subcommand("replay", "Play the program again in virtual time, with less HBM, by vmem's own decisions");
  add_file(*replayed, arguments.file);
  replayed->add_option("--hbm", arguments.hbm, "So much HBM")->required()->type_name("SIZE");
  replayed->add_option("--page", arguments.page, "The option page")->type_name("SIZE");
  replayed->add_flag("--share-pages,!--no-share-pages", arguments.share_pages, "The option share_pages; default: on");
  replayed->add_flag("--try-in-place,!--no-try-in-place", arguments.try_in_place,
                     "The option try_in_place; default: on");
  const auto rate = [&](const char* name, double& value, const char* help) {
    replayed->add_option(name, value, help)->check(CLI::Range(0.01, 1e5))->type_name("GB/s");
  };
  rate("--in", arguments.in_gb_per_s, "Rate from host memory; default: 55.3");
  rate("--out", arguments.out_gb_per_s, "Rate to host memory; default: 55.3");
  rate("--pinned", arguments.pinned_gb_per_s, "Rate at which host memory is pinned; default: 5.8");
  replayed->add_flag("--look-ahead,!--no-look-ahead", arguments.look_ahead,
                     "Decide by the order of earlier uses; without, by second chance alone; default: on");
  add_json(*replayed, arguments.timeline, "what was busy when, for https://ui.perfetto.dev,");
  add_from(*replayed, arguments);
  return replayed;
}

}  // namespace

Command add_trace(CLI::App& app, const std::vector<std::string>& program) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* const record =
      app.add_subcommand("record", "Run a program as `vmem run` does, and record it to vmem.trace");
  Command run = add_run(*record, program, Runs::recorded);
  add_show(app, *arguments);
  CLI::App* const exported = add_export(app, *arguments);
  CLI::App* const bounded = add_bound(app, *arguments);
  CLI::App* const replayed = add_replay(app, *arguments);
  app.require_subcommand(1);
  return [arguments, record, exported, bounded, replayed, run = std::move(run)] {
    if (record->parsed()) return run();
    if (bounded->parsed()) return bound(*arguments);
    if (replayed->parsed()) return replay(*arguments);
    return exported->parsed() ? export_it(*arguments) : show(*arguments);
  };
}

}  // namespace vmem::tools
