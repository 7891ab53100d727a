#include "bench/record.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "bench/build_info.hpp"
#include "bench/machine.hpp"

namespace vmem::bench {
namespace {

nlohmann::json to_json(const Machine& machine, const Gpu& gpu) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"system", machine.system},
          {"memory_bytes", machine.memory_bytes},
          {"driver_version", gpu.driver().version()}};
}

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

const char* needs_words(Goal::Needs needs) {
  switch (needs) {
    case Goal::Needs::gpu:
      return "gpu";
    case Goal::Needs::host:
      return "host";
    case Goal::Needs::link:
      return "link";
  }
  return "";
}

nlohmann::json goal_json(const Record& record, const Gpu& gpu) {
  if (!record.goal) return {};
  return {{"of", record.goal->of_ratio ? "ratio" : "achieved"},
          {"bound", record.goal->bound == Goal::Bound::at_least ? "at_least" : "at_most"},
          {"value", record.goal->value},
          {"needs", needs_words(record.goal->needs)},
          {"met", or_null(goal_met(record, gpu))}};
}

constexpr const char* kStandardOutput = "-";
// The descriptor of standard output once that is for the records alone.
int reserved_output = -1;

std::unexpected<Error> output_failed() {
  const int error = errno;
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--json -: {}", std::strerror(error)), error);
}

Status reserve_standard_output() {
  std::fflush(stdout);
  reserved_output = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (reserved_output < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return output_failed();
  return {};
}

Status write_to_output(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(reserved_output, text.data(), text.size());
    if (written < 0 && errno != EINTR) return output_failed();
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

std::string unfinished_path(const std::string& path) { return path + ".part"; }

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream out(unfinished_path(path));
  out << text;
  if (out.flush()) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--json {} cannot be written: {}; choose a folder that exists and is writable", path,
                          std::strerror(errno)),
              errno);
}

Status write_json(const std::string& path, const nlohmann::json& records) {
  const std::string unfinished = unfinished_path(path);
  VMEM_TRY(write_text(path, records.dump(2) + '\n'));
  std::error_code error;
  std::filesystem::rename(unfinished, path, error);
  if (error)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--json {} cannot be replaced: {}", path, error.message()));
  return {};
}

}  // namespace

void Record::set(const Measured& measured) {
  limit = measured.limit.median();
  achieved = measured.achieved.median();
  details["limit_best"] = measured.limit.best();
  details["limit_spread"] = measured.limit.spread();
  details["limit_samples"] = measured.limit.count();
  details["achieved_spread"] = measured.achieved.spread();
  details["achieved_samples"] = measured.achieved.count();
}

void Record::set_achieved(const Samples& samples) {
  achieved = samples.median();
  details["achieved_quartiles"] = samples.quartiles();
  details["achieved_samples"] = samples.count();
}

bool limit_exceeded(const Record& record) {
  if (record.limit_is == Record::LimitIs::reference || !record.details.contains("limit_best")) return false;
  return record.achieved > record.details["limit_best"].get<double>();
}

std::optional<bool> goal_met(const Record& record, const Gpu& gpu) {
  if (!record.goal || record.goal->needs == Goal::Needs::link) return std::nullopt;
  if (gpu.emulated() && record.goal->needs == Goal::Needs::gpu) return std::nullopt;
  if (record.goal->of_ratio && !record.ratio()) return std::nullopt;
  const double value = record.goal->of_ratio ? *record.ratio() : record.achieved;
  return record.goal->bound == Goal::Bound::at_least ? value >= record.goal->value : value <= record.goal->value;
}

nlohmann::json to_json(const Record& record, const Gpu& gpu, const Settings& settings) {
  return {{"scenario", record.scenario},
          {"variant", record.variant},
          {"options", record.options},
          {"device", gpu.name()},
          {"emulated", gpu.emulated()},
          {"limit_name", record.limit_name},
          {"limit", or_null(record.limit)},
          {"limit_is", record.limit_is == Record::LimitIs::bound ? "bound" : "reference"},
          {"limit_exceeded", limit_exceeded(record)},
          {"achieved", record.achieved},
          {"ratio", or_null(record.ratio())},
          {"unit", record.unit},
          {"goal", goal_json(record, gpu)},
          {"verified", record.verified},
          {"mismatch", record.mismatch},
          {"details", record.details},
          {"commit", kCommit},
          {"machine", to_json(read_machine(), gpu)},
          {"command", settings.command}};
}

Status check_json_path(const Settings& settings) {
  if (settings.json_path.empty()) return {};
  if (settings.json_path == kStandardOutput) return reserve_standard_output();
  VMEM_TRY(write_text(settings.json_path, ""));
  std::error_code ignored;  // save_records writes it again
  std::filesystem::remove(unfinished_path(settings.json_path), ignored);
  return {};
}

Status save_records(std::span<const Record> records, const Gpu& gpu, const Settings& settings, Saving saving) {
  if (settings.json_path.empty()) return {};
  const bool to_output = settings.json_path == kStandardOutput;
  if (to_output && saving == Saving::intermediate) return {};
  auto array = nlohmann::json::array();
  for (const Record& record : records) array.push_back(to_json(record, gpu, settings));
  return to_output ? write_to_output(array.dump(2) + '\n') : write_json(settings.json_path, array);
}

}  // namespace vmem::bench
