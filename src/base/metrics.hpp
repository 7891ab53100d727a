// The figures of vmem_stats: one table that everything which prints or exports them reads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "vmem/vmem.h"

namespace vmem {

struct Metric {
  // counter: only grows, from 0 at the start. gauge: goes up and down.
  enum class Kind : std::uint8_t { counter, gauge };
  enum class Unit : std::uint8_t { count, bytes, microseconds };

  std::string_view name;  // as the field's
  Kind kind = Kind::counter;
  Unit unit = Unit::count;
  std::string_view help;
  std::uint64_t vmem_statistics::* value = nullptr;
};

// A row for each 64-bit figure of vmem_statistics, in the order of its fields.
std::span<const Metric> metric_table();

}  // namespace vmem
