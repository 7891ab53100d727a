// Deterministic page traces of the kinds of programs that a replacement policy meets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vmem::migration::testing {

struct Reference {
  std::uint32_t region;  // 1, 2, ...
  std::uint32_t page;
  std::uint16_t stream = 1;
  bool operator==(const Reference&) const = default;
};

struct Trace {
  std::string name;
  std::vector<std::uint32_t> region_pages;  // of regions 1, 2, ...
  std::vector<Reference> references;
};

Trace cyclic_scan(std::uint32_t pages, std::uint32_t cycles);
Trace backward_scan(std::uint32_t pages, std::uint32_t cycles);
// Walks columns: every `stride`-th page, then the next column.
Trace strided_scan(std::uint32_t pages, std::uint32_t stride, std::uint32_t cycles);
// Reads region 1 and writes region 2 in lock step.
Trace lockstep_scans(std::uint32_t pages, std::uint32_t cycles);
// Scans region 1, using one of `hot` pages of region 2 in turn after each page of the scan.
Trace scan_with_hot_set(std::uint32_t pages, std::uint32_t hot, std::uint32_t cycles);
// A hot set used repeatedly, one scan through it, and the hot set again.
Trace one_time_scan(std::uint32_t pages, std::uint32_t hot);
// Uses every page several times before the scan moves on by a row of `row` pages.
Trace revisited_rows(std::uint32_t pages, std::uint32_t row, std::uint32_t visits, std::uint32_t cycles);
Trace zipf(std::uint32_t pages, double exponent, std::uint32_t references, std::uint64_t seed);
Trace uniform(std::uint32_t pages, std::uint32_t references, std::uint64_t seed);
// C = A * B over n x n tiles, as regions 1, 2 and 3.
Trace matmul(std::uint32_t n, std::uint32_t times);
// Cyclic scans of one region after another.
Trace phases(std::uint32_t pages, std::uint32_t cycles, std::uint32_t phase_count);
// Many small regions used repeatedly in one order: a network's layers, forward and backward.
Trace layers(std::uint32_t regions, std::uint32_t pages, std::uint32_t cycles, bool and_back);

}  // namespace vmem::migration::testing
