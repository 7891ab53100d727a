#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/sizes.hpp"
#include "tools/trace/reports.hpp"
#include "trace/bound.hpp"
#include "trace/program.hpp"
#include "trace/schedule.hpp"

namespace vmem::tools {
namespace {

using trace::Bound;

double ms(std::uint64_t ns) { return double(ns) * 1e-6; }

// Phases that are bound by the same thing are one line.
const char* limit_of(const Bound::Phase& phase) {
  const std::uint64_t most = phase.least_ns();
  if (most == phase.compute_ns) return "compute";
  if (most == phase.in_ns) return "link in";
  return "link out";
}

std::string words_of(const Bound& bound) {
  std::string text;
  for (std::size_t i = 0; i < bound.phases.size();) {
    Bound::Phase sum = bound.phases[i];
    std::uint64_t least_ns = sum.least_ns();
    const std::string limit = limit_of(sum);
    for (++i; i < bound.phases.size() && limit_of(bound.phases[i]) == limit; ++i) {
      const Bound::Phase& next = bound.phases[i];
      sum = {sum.first, next.end, sum.compute_ns + next.compute_ns, sum.in_ns + next.in_ns, sum.out_ns + next.out_ns};
      least_ns += next.least_ns();
    }
    text += fmt::format("  {:>8} to {:>8}  {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}  {}\n", sum.first, sum.end, ms(least_ns),
                        ms(sum.compute_ns), ms(sum.in_ns), ms(sum.out_ns), limit);
  }
  return text;
}

std::string words_of(const char* what, const trace::Schedule& schedule) {
  return fmt::format("  a schedule, if {:<26} {:>9.1f} ms, of which the GPU waits {:.1f}; in {}, out {}\n", what,
                     ms(schedule.time_ns), ms(schedule.waited_ns), format_bytes(schedule.moved.in_bytes),
                     format_bytes(schedule.moved.out_bytes));
}

}  // namespace

Result<std::string> bound_of(const trace::Trace& trace, const trace::Extract& what, const trace::Machine& machine) {
  const trace::Program program = extract(trace, what);
  if (program.launches.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("no launch of device {} is in that part of the trace; `vmem trace show` says what it holds",
                            what.device));
  const std::uint64_t largest = program.largest_launch_bytes();
  if (largest > machine.hbm_bytes)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("one launch names {}, and --hbm is {}: nothing runs in less than that",
                            format_bytes(largest), format_bytes(machine.hbm_bytes)));
  const Bound bound = trace::bound(program, machine);
  const double gib = double(std::uint64_t{1} << 30);
  std::string text = fmt::format("{} launches that use {} items, in {} of HBM\n", program.launches.size(),
                                 program.items.size(), format_bytes(machine.hbm_bytes));
  text +=
      fmt::format("  least bytes in   {:>8.3f} GiB, {:>9.1f} ms at {:.1f} GB/s\n", double(bound.moved.in_bytes) / gib,
                  double(bound.moved.in_bytes) / machine.in_bytes_per_s * 1e3, machine.in_bytes_per_s * 1e-9);
  text +=
      fmt::format("  least bytes out  {:>8.3f} GiB, {:>9.1f} ms at {:.1f} GB/s\n", double(bound.moved.out_bytes) / gib,
                  double(bound.moved.out_bytes) / machine.out_bytes_per_s * 1e3, machine.out_bytes_per_s * 1e-9);
  text += fmt::format("  compute          {:>23.1f} ms\n", ms(bound.compute_ns));
  if (program.waited_ns != 0)
    text += fmt::format(
        "    launches waited {:.1f} ms for memory while this was recorded, some of it counts as compute: for a\n"
        "    bound of the time record the program where it fits into HBM\n",
        ms(program.waited_ns));
  text += fmt::format("  bound            {:>23.1f} ms in {} phases\n", ms(bound.time_ns), bound.phases.size());
  text += words_of("only declared uses write", schedule(program, machine, trace::Writes::declared));
  text += words_of("all uses write", schedule(program, machine, trace::Writes::all));
  text += "  launches                 bound ms   compute        in       out  bound by\n" + words_of(bound);
  return text;
}

}  // namespace vmem::tools
