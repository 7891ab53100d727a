// The records as a table for people, whose rows are printed as they are measured.
#pragma once

#include <span>
#include <string>

#include "bench/record.hpp"

namespace vmem::bench {

std::string format_heading();
std::string format_row(const Record& record, const Gpu& gpu);
// The lines below the table, each with the name of its record.
std::string format_notes(std::span<const Record> records);

// Prints rows to standard output, each once.
class RowPrinter {
 public:
  explicit RowPrinter(const Gpu& gpu) : gpu_(gpu) {}
  // The rows of records beyond those already printed; REQUIRES: the same list, which only grows.
  void print_new(std::span<const Record> records);

 private:
  const Gpu& gpu_;
  std::size_t printed_ = 0;
};

}  // namespace vmem::bench
