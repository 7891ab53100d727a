#include "bench/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace vmem::bench {
namespace {

constexpr std::size_t kColumns = 7;
using Row = std::array<std::string, kColumns>;

std::string format_figure(double value, const std::string& unit) {
  const int decimals = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 1 ? 2 : 4;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string format_goal(const Record& record) {
  if (!record.goal) return "";
  const char* bound = record.goal->bound == Goal::Bound::at_least ? ">=" : "<=";
  if (record.goal->of_ratio) return fmt::format("{} {:.2f}", bound, record.goal->value);
  return fmt::format("{} {:g} {}", bound, record.goal->value, record.unit);
}

std::string format_met(const Record& record, const Gpu& gpu) {
  if (gpu.emulated()) return "emulated";
  const auto met = goal_met(record, gpu);
  if (!met) return "";
  return *met ? "met" : "MISSED";
}

Row format_row(const Record& record, const Gpu& gpu) {
  return {record.scenario + (record.variant.empty() ? "" : " " + record.variant),
          record.limit ? format_figure(*record.limit, record.unit) : "-",
          format_figure(record.achieved, record.unit),
          record.ratio() ? fmt::format("{:.3f}", *record.ratio()) : "-",
          format_goal(record),
          format_met(record, gpu),
          record.verified ? "yes" : "NO"};
}

// Names to the left, figures to the right.
std::string format_line(const Row& row, const std::array<std::size_t, kColumns>& widths) {
  std::string line = fmt::format("{:<{}}", row[0], widths[0]);
  for (std::size_t column = 1; column < kColumns; ++column)
    line += column < 5 ? fmt::format("  {:>{}}", row[column], widths[column])
                       : fmt::format("  {:<{}}", row[column], widths[column]);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

std::string format_table(std::span<const Record> records, const Gpu& gpu) {
  std::vector<Row> rows = {{"scenario", "limit", "achieved", "ratio", "goal", "", "verified"}};
  for (const Record& record : records) rows.push_back(format_row(record, gpu));
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows)
    for (std::size_t column = 0; column < kColumns; ++column)
      widths[column] = std::max(widths[column], row[column].size());

  std::string text;
  for (const Row& row : rows) text += format_line(row, widths);
  for (const Record& record : records) {
    for (const std::string& note : record.notes) text += fmt::format("  {}: {}\n", record.scenario, note);
    if (!record.verified)
      text += fmt::format("  {} {}: WRONG DATA: {}\n", record.scenario, record.variant, record.mismatch);
  }
  return text;
}

}  // namespace vmem::bench
