// What the user asked for, and the sizes that follow from it on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace vmem::bench {

class Gpu;

struct Settings {
  std::string scenario;
  std::string mode = "both";               // stream: ro, rw or both
  std::optional<double> ratio;             // working set to HBM budget; each scenario has its default
  std::optional<std::uint64_t> hbm_bytes;  // budgets as the runtime's options of the same name
  std::optional<std::uint64_t> host_bytes;
  std::optional<std::uint64_t> working_set_bytes;
  std::optional<std::uint64_t> page_bytes;
  std::optional<std::uint64_t> chunk_bytes;   // bytes named by one acquire; default: the region's page
  std::optional<std::uint64_t> disk_bytes_s;  // compress: a slower disk
  std::uint64_t seed = 1;
  int passes = 0;   // over the working set in one sample; 0: enough for a stable figure
  int repeats = 3;  // samples; the limit is measured once more than that, before, between and after
  int device = 0;
  std::string driver = "auto";
  std::string input;                                                 // file scenario
  std::string json_path;                                             // where the records go; empty: nowhere
  std::string command;                                               // the command line, for the records
  std::vector<std::pair<std::string, std::string>> runtime_options;  // passed on to the runtime
};

// Budgets and working set of one measurement, all multiples of 2 MiB.
struct Sizes {
  double ratio = 0;
  std::uint64_t hbm_bytes = 0;
  std::uint64_t host_bytes = 0;
  std::uint64_t nvme_bytes = 0;    // of the runtime's option; 0: none
  std::uint64_t peer_bytes = 0;    // likewise
  std::uint64_t remote_bytes = 0;  // that other nodes lend
  std::uint64_t working_set_bytes = 0;
};

// Fills in what was not asked for. Errors: INVALID_OPTION (contradictions; more HBM than the device has; a working set
// that HBM, peers, host, other nodes and files together cannot hold; more host memory than is available; a node of --remote that
// cannot be reached: they are asked what they lend).
Result<Sizes> plan_sizes(const Settings& settings, const Gpu& gpu, double default_ratio);

// As plan_sizes, for a scenario whose working set is given, as a file's is.
Result<Sizes> plan_sizes_for(std::uint64_t working_set_bytes, const Settings& settings, const Gpu& gpu,
                             double default_ratio);

// As plan_sizes, for a working set in a file, which needs no room in host memory.
Result<Sizes> plan_mapped_sizes(const Settings& settings, const Gpu& gpu, double default_ratio);

}  // namespace vmem::bench
