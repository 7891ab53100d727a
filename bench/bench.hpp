// `vmem bench`: runs one scenario, prints the table, writes the JSON file.
#pragma once

#include <span>
#include <string>

#include "bench/context.hpp"
#include "bench/exit_code.hpp"
#include "bench/settings.hpp"

namespace vmem::bench {

// Prints to standard output, failures to standard error; returns the program's exit code.
int run(const Settings& settings);

}  // namespace vmem::bench
