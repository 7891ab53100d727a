// vmem plan: what a recorded program takes with less HBM, or another link.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/option_parse.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "migration/mover_options.hpp"
#include "pagetable/types.hpp"
#include "replay/plan.hpp"
#include "tiers/host_options.hpp"
#include "tools/commands.hpp"
#include "tools/json_file.hpp"
#include "trace/file.hpp"

namespace vmem::tools {
namespace {

using nlohmann::ordered_json;
using replay::Measured;
using replay::Plan;

struct Arguments {
  std::string file, json, page;
  std::optional<std::string> host, peer, below;
  std::vector<std::string> hbm;
  double within_percent = 10;
  // 0: not given.
  double in_gb_per_s = 0, out_gb_per_s = 0, peer_gb_per_s = 0, below_in_gb_per_s = 0, below_out_gb_per_s = 0;
};

int refuse(const std::string& why) {
  fmt::print(stderr, "vmem plan: {}\n", why);
  return bench::kExitBadOptions;
}

// Of one period.
struct Scale {
  double periods;
  double ms(std::uint64_t ns) const { return double(ns) / 1e6 / periods; }
  double gib(std::uint64_t bytes) const { return double(bytes) / double(std::uint64_t{1} << 30) / periods; }
  double number(std::uint64_t count) const { return double(count) / periods; }
};

Scale scale_of(const Plan& plan) { return {plan.steady.periods == 0 ? 1.0 : double(plan.steady.periods)}; }

std::string words_of(const Plan& plan, double within_percent) {
  const Scale scale = scale_of(plan);
  std::string text =
      plan.steady.periods == 0
          ? fmt::format("No part of the trace repeats: figures are of its last {} launches", plan.steady.launches)
          : fmt::format("A period has {} launches; figures are of one", plan.steady.launches);
  text += fmt::format(". At most {} live at a time.\n", format_bytes(plan.steady.peak_bytes));
  text += fmt::format("Where all fits it takes {:.1f} ms.\n\n", scale.ms(plan.fits.time_ns));
  text += fmt::format("{:>10} {:>9} {:>7} {:>9} {:>9} {:>8} {:>8} {:>7}  {}\n", "HBM", "ms", "times", "bound ms",
                      "schedule", "in GiB", "out GiB", "maps", "busiest");
  for (const replay::PlanRow& row : plan.rows) {
    const Measured& measured = row.measured;
    text += fmt::format("{:>10} {:>9.1f} {:>7.2f} {:>9.1f} {:>9.1f} {:>8.2f} {:>8.2f} {:>7.0f}  {} {:.0f} %\n",
                        format_bytes(row.hbm_bytes), scale.ms(measured.time_ns),
                        double(measured.time_ns) / double(plan.fits.time_ns), scale.ms(row.bound.time_ns),
                        scale.ms(row.schedule.time_ns), scale.gib(measured.in_bytes), scale.gib(measured.out_bytes),
                        scale.number(measured.maps), limit_of(measured), 100 * busiest_part(measured));
  }
  if (plan.smallest_hbm_bytes)
    text += fmt::format("\n{} of HBM is the least whose periods take at most {:g} % longer than where all fits.\n",
                        format_bytes(*plan.smallest_hbm_bytes), within_percent);
  return text;
}

ordered_json json_of(const Measured& measured, const Scale& scale) {
  return {{"ms", scale.ms(measured.time_ns)},
          {"gpu_ms", scale.ms(measured.gpu_ns)},
          {"in_gib", scale.gib(measured.in_bytes)},
          {"out_gib", scale.gib(measured.out_bytes)},
          {"ahead_gib", scale.gib(measured.ahead_bytes)},
          {"in_busy_ms", scale.ms(measured.in_busy_ns)},
          {"out_busy_ms", scale.ms(measured.out_busy_ns)},
          {"peer_in_busy_ms", scale.ms(measured.peer_in_busy_ns)},
          {"peer_out_busy_ms", scale.ms(measured.peer_out_busy_ns)},
          {"below_in_gib", scale.gib(measured.below_in_bytes)},
          {"below_out_gib", scale.gib(measured.below_out_bytes)},
          {"below_in_busy_ms", scale.ms(measured.below_in_busy_ns)},
          {"below_out_busy_ms", scale.ms(measured.below_out_busy_ns)},
          {"maps", scale.number(measured.maps)},
          {"frames_made", scale.number(measured.frames_made)},
          {"mover_busy_ms", scale.ms(measured.mover_busy_ns)},
          {"waits", scale.number(measured.waits)},
          {"waited_ms", scale.ms(measured.waited_ns)}};
}

std::string json_of(const Plan& plan) {
  const Scale scale = scale_of(plan);
  ordered_json rows = ordered_json::array();
  for (const replay::PlanRow& row : plan.rows) {
    ordered_json each{{"hbm_bytes", row.hbm_bytes}};
    each.update(json_of(row.measured, scale));
    each["bound_ms"] = scale.ms(row.bound.time_ns);
    each["bound_in_gib"] = scale.gib(row.bound.moved.in_bytes);
    each["bound_out_gib"] = scale.gib(row.bound.moved.out_bytes);
    each["schedule_ms"] = scale.ms(row.schedule.time_ns);
    each["schedule_in_gib"] = scale.gib(row.schedule.moved.in_bytes);
    each["schedule_out_gib"] = scale.gib(row.schedule.moved.out_bytes);
    each["busiest"] = std::string(limit_of(row.measured));
    rows.push_back(each);
  }
  ordered_json all{{"from_s", double(plan.steady.from_ns) * 1e-9},
                   {"periods", plan.steady.periods},
                   {"launches", plan.steady.launches},
                   {"peak_bytes", plan.steady.peak_bytes},
                   {"largest_launch_bytes", plan.largest_launch_bytes},
                   {"fits", json_of(plan.fits, scale)},
                   {"rows", rows}};
  if (plan.smallest_hbm_bytes) all["smallest_hbm_bytes"] = *plan.smallest_hbm_bytes;
  return all.dump(1) + "\n";
}

// No machine has more.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 46;

Status take_size(std::uint64_t& bytes, const char* flag, const std::optional<std::string>& text, std::uint64_t least) {
  if (!text) return {};
  const auto size = parse_size(*text, {.least = least, .most = kMostBytes});
  if (!size)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} is '{}': {}", flag, printable(*text), size.error().message));
  bytes = *size / pagetable::kGranuleBytes * pagetable::kGranuleBytes;
  return {};
}

Result<replay::Chain> chain_of(const Arguments& arguments) {
  replay::Chain chain;
  VMEM_TRY(take_size(chain.host_bytes, "--host", arguments.host, kSmallestHost));
  VMEM_TRY(take_size(chain.peer_bytes, "--peer", arguments.peer, 0));
  VMEM_TRY(take_size(chain.below_bytes, "--below", arguments.below, 0));
  take_rate(chain.link.in_bytes_per_s, arguments.in_gb_per_s);
  take_rate(chain.link.out_bytes_per_s, arguments.out_gb_per_s);
  take_rate(chain.peer_link.in_bytes_per_s, arguments.peer_gb_per_s);
  take_rate(chain.peer_link.out_bytes_per_s, arguments.peer_gb_per_s);
  take_rate(chain.below_in_bytes_per_s, arguments.below_in_gb_per_s);
  take_rate(chain.below_out_bytes_per_s, arguments.below_out_gb_per_s);
  return chain;
}

Result<replay::PlanRequest> request_of(const Arguments& arguments) {
  replay::PlanRequest request;
  VMEM_ASSIGN(request.chain, chain_of(arguments));
  for (const std::string& text : arguments.hbm) {
    const auto hbm = parse_size(text, {.least = kSmallestHbm, .most = kMostBytes});
    if (!hbm)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--hbm is '{}': {}", printable(text), hbm.error().message));
    request.hbm_bytes.push_back(*hbm);
  }
  if (!arguments.page.empty()) {
    const auto page = parse_size(arguments.page, {.least = std::uint64_t{2} << 20, .most = std::uint64_t{256} << 20});
    if (!page || !std::has_single_bit(*page))
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--page is '{}': it takes a power of two from 2MiB to 256MiB",
                                                         printable(arguments.page)));
    request.page_bytes = *page;
  }
  if (arguments.within_percent > 0) request.within = arguments.within_percent / 100;
  return request;
}

int run(const Arguments& arguments) {
  if (const Status able = check_json_file(arguments.json, arguments.file); !able) return refuse(able.error().message);
  const auto request = request_of(arguments);
  if (!request) return refuse(request.error().message);
  const auto trace = trace::read(arguments.file);
  if (!trace) return refuse(trace.error().message);
  if (!trace->cut_short.empty()) fmt::print(stderr, "vmem plan: {}\n", trace->cut_short);
  const auto plan = replay::plan(*trace, *request);
  if (!plan) return refuse(plan.error().message);
  if (!is_standard_output(arguments.json)) fmt::print("{}", words_of(*plan, arguments.within_percent));
  if (const Status written = write_json_file(arguments.json, json_of(*plan)); !written)
    return refuse(written.error().message);
  for (const replay::PlanRow& row : plan->rows) {
    if (row.measured.wrong_loads != 0) return bench::kExitMismatch;
  }
  return bench::kExitOk;
}

constexpr const char* kFooter = R"(
Record the program where it fits, over some ten steps, each launch timed by itself:
  vmem trace record --trace-epoch 1 -- python train.py
The steps that repeat at the trace's end are played again in virtual time, by vmem's own decisions. Beyond HBM half of
the runs took at most 10 % longer, others up to 37 %. What HBM does not hold lies in another GPU's memory (--peer), then
in host memory, then in what is below it (--below: a disk or another node), as in a run. Programs on several devices, and
those that call vmem, cannot be played. Bound: nothing is faster where the GPU's work takes as long as recorded. Schedule:
what somebody who knows the future can do. Both are those of the slowest link. Busiest: what is busy for the largest
part of the time, the mover with mapping.

Exit codes: 0 printed; 1 a page came back with old contents (a bug); 2 bad options, or a trace that cannot be read or played.)";

}  // namespace

Command add_plan(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  app.add_option("FILE", arguments->file, "The trace")->required();
  app.add_option("--hbm", arguments->hbm, "So much HBM; several sizes by commas; default: 1/1.25 to 1/4 of the peak")
      ->delimiter(',')
      ->type_name("SIZE");
  app.add_option("--within", arguments->within_percent,
                 "Find the least HBM whose steps take at most so much longer; 0: do not; default: 10")
      ->check(CLI::Range(0.0, 1e4))
      ->type_name("PERCENT");
  const auto rate = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::Range(0.01, 1e5))->type_name("GB/s");
  };
  const auto size = [&](const char* name, std::optional<std::string>& value, const char* help) {
    app.add_option(name, value, help)->type_name("SIZE");
  };
  size("--peer", arguments->peer, "So much of another GPU's memory; default: none");
  rate("--peer-rate", arguments->peer_gb_per_s, "Rate from it and to it; default: 390");
  size("--host", arguments->host, "So much pinned host memory; default: 256GiB");
  rate("--in", arguments->in_gb_per_s, "Rate from host memory; default: 55.3");
  rate("--out", arguments->out_gb_per_s, "Rate to host memory; default: 55.3");
  size("--below", arguments->below, "So much below host memory; default: none");
  rate("--below-in", arguments->below_in_gb_per_s, "Rate from there; default: 3.5");
  rate("--below-out", arguments->below_out_gb_per_s, "Rate to there; default: 2.5");
  app.add_option("--page", arguments->page, "The option page")->type_name("SIZE");
  add_json(app, arguments->json, "the figures");
  app.footer(kFooter);
  return [arguments] { return run(*arguments); };
}

}  // namespace vmem::tools
