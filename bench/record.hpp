// One measured figure with the limit from the same run: a row of the table, an object of the JSON
// file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "bench/gpu.hpp"
#include "bench/samples.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

// The project's goal for a figure.
struct Goal {
  enum class Bound { at_least, at_most };
  // What has to be real for the goal to apply. A disk, a network and a codec are, beside any GPU.
  // A link with a rate lies between hosts: processes of one host compete for its cores instead.
  enum class Needs { gpu, host, link };
  Bound bound;
  double value;
  bool of_ratio;  // else of the achieved figure
  Needs needs = Needs::gpu;
};

struct Record {
  // bound: no run can beat it, so one that does shows that it was measured wrongly. reference: what
  // the figure is compared with.
  enum class LimitIs { bound, reference };
  std::string scenario;
  std::string variant;     // "read-only, 4x"; with the scenario, the row's name
  nlohmann::json options;  // the sizes that the figure depends on, in bytes
  std::string unit;        // of limit and achieved
  std::string limit_name;  // the limit in words; empty if there is none
  std::optional<double> limit;
  LimitIs limit_is = LimitIs::bound;
  double achieved = 0;
  bool verified = false;
  std::string mismatch;  // if not verified: the first difference
  std::optional<Goal> goal;
  nlohmann::json details = nlohmann::json::object();  // further figures, base units in their names
  std::vector<std::string> notes;                     // sentences under the table

  std::optional<double> ratio() const {
    if (!limit || *limit == 0) return std::nullopt;
    return achieved / *limit;
  }
  // Takes the medians of both sides, and keeps the spreads and the best limit.
  void set(const Measured& measured);
  // Takes the median, and keeps the quartiles: of many short samples the extremes say little.
  void set_achieved(const Samples& samples);
};

// Whether the figure beats the best sample of what bounds it.
bool limit_exceeded(const Record& record);

// Whether the figure meets its goal; nullopt if it has none, or if what it needs is not there.
std::optional<bool> goal_met(const Record& record, const Gpu& gpu);

// The record with the command, machine and commit of the run.
nlohmann::json to_json(const Record& record, const Gpu& gpu, const Settings& settings);

// Checks, before anything is measured, that the --json file can be written. With "-" the records go
// to standard output, and all that is printed from now on goes to standard error instead. Errors:
// INVALID_OPTION.
Status check_json_path(const Settings& settings);

// Writes all records to the --json file, if given; only a complete file replaces it. `final`: to
// standard output, too. Errors: INVALID_OPTION (the path cannot be written).
enum class Saving : std::uint8_t { intermediate, final };
Status save_records(std::span<const Record> records, const Gpu& gpu, const Settings& settings, Saving saving);

}  // namespace vmem::bench
