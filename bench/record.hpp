// One measured figure with the limit measured in the same run; a row of the table, an object of the JSON file.
#pragma once

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

// What the project promises of a figure on a real GPU. Emulated figures are not held to it.
struct Goal {
  enum class Bound { at_least, at_most };
  Bound bound;
  double value;
  bool of_ratio;  // else of the achieved figure
};

struct Record {
  std::string scenario;
  std::string variant;     // "read-only, 4x"; with the scenario, the row's name
  nlohmann::json options;  // the sizes that the figure depends on, in bytes
  std::string unit;        // of limit and achieved
  std::string limit_name;  // what the limit is, in words; empty when there is none
  std::optional<double> limit;
  double achieved = 0;
  bool verified = false;
  std::string mismatch;  // when not verified: what was wrong, and where first
  std::optional<Goal> goal;
  nlohmann::json details = nlohmann::json::object();  // further figures, base units in their names
  std::vector<std::string> notes;                     // sentences under the table

  std::optional<double> ratio() const {
    if (!limit || *limit == 0) return std::nullopt;
    return achieved / *limit;
  }
  // Takes both medians, and keeps the spreads.
  void set(const Measured& measured);
  // The same beside something that is no limit but another way, on a disk that others use too: medians on both sides.
  void set_beside(const Measured& measured);
};

// Whether the figure keeps the promise; nothing when it is not held to one.
std::optional<bool> goal_met(const Record& record, const Gpu& gpu);

// The record with what was run, on what, from which commit.
nlohmann::json to_json(const Record& record, const Gpu& gpu, const Settings& settings);

// Whether the file that --json names can be written, before anything is measured for it. Errors: INVALID_OPTION.
Status check_json_path(const Settings& settings);

// Writes all records to the file that --json names, if it does; the file is replaced only by a complete one.
// Errors: INVALID_OPTION (the path cannot be written).
Status save_records(std::span<const Record> records, const Gpu& gpu, const Settings& settings);

}  // namespace vmem::bench
