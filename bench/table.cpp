#include "bench/table.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>

namespace vmem::bench {
namespace {

constexpr std::size_t kColumns = 7;
using Row = std::array<std::string, kColumns>;
// Rows are printed before later ones are known. A longer cell moves the rest of its own row.
constexpr std::array<std::size_t, kColumns> kWidths{36, 12, 12, 7, 10, 16, 8};

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
  std::string label = gpu.emulated() ? "emulated" : "";
  const auto met = goal_met(record, gpu);
  if (!met) return label;
  return (*met ? "met" : "MISSED") + (label.empty() ? "" : ", " + label);
}

std::string name_of(const Record& record) {
  return record.scenario + (record.variant.empty() ? "" : " " + record.variant);
}

// Many notes begin with their variant.
std::string named(const Record& record, const std::string& note) {
  const bool has_variant = !record.variant.empty() && note.starts_with(record.variant + ": ");
  return has_variant ? record.scenario + " " + note : name_of(record) + ": " + note;
}

Row cells_of(const Record& record, const Gpu& gpu) {
  return {name_of(record),
          record.limit ? format_figure(*record.limit, record.unit) : "-",
          format_figure(record.achieved, record.unit),
          record.ratio() ? fmt::format("{:.3f}", *record.ratio()) : "-",
          format_goal(record),
          format_met(record, gpu),
          record.verified ? "yes" : "NO"};
}

// Names left-aligned, figures right-aligned.
std::string format_line(const Row& row, const std::array<std::size_t, kColumns>& widths) {
  std::string line = fmt::format("{:<{}}", row[0], widths[0]);
  for (std::size_t column = 1; column < kColumns; ++column)
    line += column < 5 ? fmt::format("  {:>{}}", row[column], widths[column])
                       : fmt::format("  {:<{}}", row[column], widths[column]);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + '\n';
}

}  // namespace

void RowPrinter::print_new(std::span<const Record> records) {
  if (printed_ == 0 && !records.empty()) fmt::print("{}", format_heading());
  for (; printed_ < records.size(); ++printed_) fmt::print("{}", format_row(records[printed_], gpu_));
  std::fflush(stdout);
}

std::string format_heading() {
  return format_line({"scenario", "limit", "achieved", "ratio", "goal", "", "verified"}, kWidths);
}

std::string format_row(const Record& record, const Gpu& gpu) { return format_line(cells_of(record, gpu), kWidths); }

std::string format_notes(std::span<const Record> records) {
  std::string text;
  for (const Record& record : records) {
    if (limit_exceeded(record))
      text += fmt::format("  {}: above every sample of its limit: that was disturbed, or measured wrongly\n",
                          name_of(record));
    for (const std::string& note : record.notes) text += fmt::format("  {}\n", named(record, note));
    if (!record.verified) text += fmt::format("  {}: WRONG DATA: {}\n", name_of(record), record.mismatch);
  }
  return text;
}

}  // namespace vmem::bench
