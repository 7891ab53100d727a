// The user's settings, and the sizes derived from them on this machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {

class Gpu;

struct Settings {
  std::string scenario;
  std::string mode = "both";  // stream: ro, rw or both
  // Working set to HBM budget; each scenario has its default.
  std::optional<double> ratio;
  std::optional<std::uint64_t> hbm_bytes;  // budgets as the runtime's options of the same name
  std::optional<std::uint64_t> host_bytes;
  std::optional<std::uint64_t> working_set_bytes;
  std::optional<std::uint64_t> page_bytes;
  std::optional<std::uint64_t> chunk_bytes;   // bytes per acquire; default: the region's page
  std::optional<std::uint64_t> disk_bytes_s;  // compress: emulates a slower disk
  std::uint64_t seed = 1;
  int passes = 0;   // over the working set per sample; 0: enough for a stable figure
  int repeats = 3;  // samples; the limit is measured once more: before, between and after
  int device = 0;
  std::string driver = "auto";
  std::string input;              // file scenario
  std::vector<std::string> rows;  // cluster: those to measure; empty: all
  std::string page_server;        // cluster: where a plain socket answers each byte with a page
  bool check = false;             // a missed goal gives exit code 1
  // Where the records go; empty: nowhere.
  std::string json_path;
  // The command line, for the records.
  std::string command;
  std::vector<std::pair<std::string, std::string>> runtime_options;  // passed on to the runtime
};

// The runtime's options called `names`, as the runtime finds them: given, else in the environment.
// Does not check contradictions, so that other options need not be known yet. Errors:
// INVALID_OPTION.
Result<Options> options_named(const Settings& settings, std::initializer_list<std::string_view> names);

// Budgets and working set of one measurement, all multiples of 2 MiB.
struct Sizes {
  double ratio = 0;
  std::uint64_t hbm_bytes = 0;
  std::uint64_t host_bytes = 0;
  std::uint64_t nvme_bytes = 0;    // of the runtime's option; 0: none
  std::uint64_t peer_bytes = 0;    // likewise
  std::uint64_t remote_bytes = 0;  // lent by other nodes
  std::uint64_t working_set_bytes = 0;
};

// Fills in unspecified sizes. Asks the nodes of --remote how much they lend. Errors: INVALID_OPTION
// (contradictions; more HBM than the device has; a working set that HBM, peers, host, other nodes
// and files together cannot hold; more host memory than is available; a node of --remote that
// cannot be reached, or nodes that have no room).
Result<Sizes> plan_sizes(const Settings& settings, const Gpu& gpu, double default_ratio);

// Refuses a scenario that needs more host memory than is available. Errors: INVALID_OPTION.
Status check_host_memory(std::string_view scenario, std::uint64_t needed_bytes);

// As plan_sizes, for a scenario with a given working set, such as a file's size.
Result<Sizes> plan_sizes_for(std::uint64_t working_set_bytes, const Settings& settings, const Gpu& gpu,
                             double default_ratio);

// As plan_sizes, for a working set in a file, which needs no room in host memory.
Result<Sizes> plan_mapped_sizes(const Settings& settings, const Gpu& gpu, double default_ratio);

}  // namespace vmem::bench
