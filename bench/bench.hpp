// Runs one `vmem bench` scenario, prints the table and writes the JSON file.
#pragma once

#include <span>
#include <string>

#include "bench/context.hpp"
#include "bench/exit_code.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

// Prints to standard output, failures to standard error; returns the program's exit code.
int run(const Settings& settings);

// kExitMismatch if a record is not verified or, with `check`, misses a goal. With `check` prints
// how many goals are met, missed and not judged.
ExitCode exit_code(std::span<const Record> records, const Gpu& gpu, bool check);

}  // namespace vmem::bench
