// all: every figure of the project's table of goals, in one run and one JSON file.
#include <fmt/format.h>

#include <cstdio>

#include "bench/context.hpp"

namespace vmem::bench {
namespace {

struct Case {
  Status (*run)(Context&);
  const char* name;
  double ratio;  // 0: the scenario's own
};

constexpr Case kCases[] = {
    {run_lookup, "lookup", 0}, {run_alloc, "alloc", 0},   {run_hit, "hit", 0},
    {run_stream, "stream", 4}, {run_block, "block", 4},   {run_random, "random", 4},
    {run_random, "random", 2}, {run_matmul, "matmul", 3}, {run_scale, "scale", 0},
};

// --hbm applies to every case but scale, which chooses its own budget; each case has its own ratio.
Settings settings_for(const Settings& given, const Case& one) {
  Settings settings = given;
  settings.ratio.reset();
  settings.working_set_bytes.reset();
  if (one.ratio > 0) settings.ratio = one.ratio;
  if (one.run == run_scale) settings.hbm_bytes.reset();
  settings.mode = "both";
  return settings;
}

// Reports a failure at once; the caller continues with the other figures.
Status run_case(Context& context, const Case& one) {
  const Settings settings = settings_for(context.settings, one);
  Context part = context.with(settings);
  const Stopwatch watch;
  const Status status = one.run(part);
  context.show_rows();
  if (status)
    fmt::print("{} done in {:.0f} s\n", one.name, watch.seconds());
  else
    fmt::print(stderr, "vmem bench: {}: {}\n", one.name, status.error().message);
  std::fflush(stdout);
  return status;
}

}  // namespace

Status run_all(Context& context) {
  if (context.settings.ratio || context.settings.working_set_bytes)
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        "bench all sets the ratio of every figure itself; leave out --ratio and --working-set, or run one scenario");
  Status first_failure;
  for (const Case& one : kCases) {
    if (const Status status = run_case(context, one); !status && first_failure) first_failure = status;
    // A later case may not end.
    VMEM_TRY(save_records(context.records, context.gpu, context.settings, Saving::intermediate));
  }
  if (first_failure && !context.settings.input.empty()) return run_file(context);
  return first_failure;
}

}  // namespace vmem::bench
