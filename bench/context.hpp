// What a scenario works with, and the list of scenarios.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/gpu.hpp"
#include "bench/launcher.hpp"
#include "bench/progress.hpp"
#include "bench/record.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

struct Context {
  const Settings& settings;
  const Gpu& gpu;
  const Launcher& launcher;
  Progress& progress;
  std::vector<Record>& records;  // what was measured so far

  // The same machine with other settings.
  Context with(const Settings& other) const { return {other, gpu, launcher, progress, records}; }
};

struct Scenario {
  const char* name;
  const char* summary;
  Status (*run)(Context&);
  void (*print_after)(const Gpu&) = nullptr;  // words under the table
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
Status run_compress(Context&);
Status run_demo(Context&);
void print_after_demo(const Gpu&);
Status run_all(Context&);

}  // namespace vmem::bench
