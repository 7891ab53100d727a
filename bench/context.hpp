// The context of a scenario, and the list of scenarios.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu.hpp"
#include "bench/launcher.hpp"
#include "bench/progress.hpp"
#include "bench/record.hpp"
#include "bench/samples.hpp"
#include "bench/settings.hpp"
#include "bench/table.hpp"

namespace vmem::bench {

struct Context {
  const Settings& settings;
  const Gpu& gpu;
  const Launcher& launcher;
  Progress& progress;
  std::vector<Record>& records;  // measured so far
  RowPrinter& rows;

  // The same machine with other settings.
  Context with(const Settings& other) const { return {other, gpu, launcher, progress, records, rows}; }
  // Shows the rows of all records measured so far. REQUIRES: they change no more.
  void show_rows() {
    progress.end();
    rows.print_new(records);
  }
};

// measure_interleaved, with a step of progress a sample.
template <class Limit, class Achieved>
Result<Measured> measure_shown(Context& context, const std::string& label, Limit&& limit, Achieved&& achieved) {
  const auto step = [&](auto& side) -> Result<double> {
    VMEM_ASSIGN(const double value, side());
    context.progress.advance();
    return value;
  };
  const int repeats = context.settings.repeats;
  context.progress.begin(label, 2 * static_cast<std::uint64_t>(repeats) + 1);
  return measure_interleaved(repeats, [&] { return step(limit); }, [&] { return step(achieved); });
}

struct Scenario {
  const char* name;
  const char* summary;
  Status (*run)(Context&);
  void (*print_after)(const Gpu&) = nullptr;  // prints text under the table
  bool is_internal = false;                   // for processes that another scenario starts
};

std::span<const Scenario> scenarios();

// Each adds its records. A mismatch is a record that is not verified, not an error.
Status run_stream(Context&);
Status run_scale(Context&);
Status run_block(Context&);
Status run_random(Context&);
Status run_file(Context&);
Status run_map(Context&);
Status run_matmul(Context&);
Status run_hit(Context&);
Status run_lookup(Context&);
Status run_alloc(Context&);
Status run_driver(Context&);
Status run_peer(Context&);
Status run_tier(Context&);
Status run_net(Context&);
Status run_cluster(Context&);
Status run_lend(Context&);
// Opens, reads and closes regions as the lines of standard input say, and answers each line.
Status run_reader(Context&);
Status run_compress(Context&);
Status run_demo(Context&);
void print_after_demo(const Gpu&);
Status run_all(Context&);

}  // namespace vmem::bench
