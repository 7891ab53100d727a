// The records as an aligned table, for people.
#pragma once

#include <span>
#include <string>

#include "bench/record.hpp"

namespace vmem::bench {

std::string format_table(std::span<const Record> records, const Gpu& gpu);

}  // namespace vmem::bench
