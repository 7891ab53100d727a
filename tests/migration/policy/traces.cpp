#include "migration/policy/traces.hpp"

#include <algorithm>
#include <cmath>
#include <random>

namespace vmem::migration::testing {
namespace {

void scan_once(Trace& trace, std::uint32_t region) {
  for (std::uint32_t page = 0; page < trace.region_pages[region - 1]; ++page)
    trace.references.push_back({region, page});
}

// std::uniform_real_distribution differs between libraries, but the traces must not.
double unit(std::mt19937_64& random) { return double(random() >> 11) * 0x1p-53; }

}  // namespace

Trace cyclic_scan(std::uint32_t pages, std::uint32_t cycles) {
  Trace trace{"cyclic scan", {pages}, {}};
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle) scan_once(trace, 1);
  return trace;
}

Trace backward_scan(std::uint32_t pages, std::uint32_t cycles) {
  Trace trace = cyclic_scan(pages, cycles);
  trace.name = "backward scan";
  for (Reference& reference : trace.references) reference.page = pages - 1 - reference.page;
  return trace;
}

Trace strided_scan(std::uint32_t pages, std::uint32_t stride, std::uint32_t cycles) {
  Trace trace{"strided scan", {pages}, {}};
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle)
    for (std::uint32_t column = 0; column < stride; ++column)
      for (std::uint32_t page = column; page < pages; page += stride) trace.references.push_back({1, page});
  return trace;
}

Trace lockstep_scans(std::uint32_t pages, std::uint32_t cycles) {
  Trace trace{"two scans in lock step", {pages, pages}, {}};
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle)
    for (std::uint32_t page = 0; page < pages; ++page) {
      trace.references.push_back({1, page});
      trace.references.push_back({2, page});
    }
  return trace;
}

Trace scan_with_hot_set(std::uint32_t pages, std::uint32_t hot, std::uint32_t cycles) {
  Trace trace{"scan and hot set", {pages, hot}, {}};
  std::uint32_t next = 0;
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle)
    for (std::uint32_t page = 0; page < pages; ++page) {
      trace.references.push_back({1, page});
      trace.references.push_back({2, next++ % hot});
    }
  return trace;
}

Trace one_time_scan(std::uint32_t pages, std::uint32_t hot) {
  Trace trace{"one-time scan", {pages, hot}, {}};
  const auto use_hot = [&] {
    for (int i = 0; i < 10; ++i) scan_once(trace, 2);
  };
  use_hot();
  scan_once(trace, 1);
  use_hot();
  return trace;
}

Trace revisited_rows(std::uint32_t pages, std::uint32_t row, std::uint32_t visits, std::uint32_t cycles) {
  Trace trace{"revisited rows", {pages}, {}};
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle)
    for (std::uint32_t begin = 0; begin < pages; begin += row)
      for (std::uint32_t visit = 0; visit < visits; ++visit)
        for (std::uint32_t page = begin; page < std::min(begin + row, pages); ++page)
          trace.references.push_back({1, page});
  return trace;
}

Trace zipf(std::uint32_t pages, double exponent, std::uint32_t references, std::uint64_t seed) {
  Trace trace{"zipf", {pages}, {}};
  std::mt19937_64 random(seed);
  std::vector<double> cumulative(pages);
  double sum = 0;
  for (std::uint32_t i = 0; i < pages; ++i) cumulative[i] = sum += std::pow(i + 1, -exponent);
  std::vector<std::uint32_t> order(pages);
  for (std::uint32_t i = 0; i < pages; ++i) order[i] = i;
  for (std::uint32_t i = pages; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  for (std::uint32_t i = 0; i < references; ++i) {
    const auto rank = std::lower_bound(cumulative.begin(), cumulative.end(), unit(random) * sum) - cumulative.begin();
    trace.references.push_back({1, order[std::min<std::size_t>(std::size_t(rank), pages - 1)]});
  }
  return trace;
}

Trace uniform(std::uint32_t pages, std::uint32_t references, std::uint64_t seed) {
  Trace trace{"uniform random", {pages}, {}};
  std::mt19937_64 random(seed);
  for (std::uint32_t i = 0; i < references; ++i) trace.references.push_back({1, std::uint32_t(random() % pages)});
  return trace;
}

Trace matmul(std::uint32_t n, std::uint32_t times) {
  Trace trace{"matmul tiles", {n * n, n * n, n * n}, {}};
  for (std::uint32_t time = 0; time < times; ++time)
    for (std::uint32_t i = 0; i < n; ++i)
      for (std::uint32_t j = 0; j < n; ++j)
        for (std::uint32_t k = 0; k < n; ++k) {
          trace.references.push_back({1, i * n + k});
          trace.references.push_back({2, k * n + j});
          trace.references.push_back({3, i * n + j});
        }
  return trace;
}

Trace phases(std::uint32_t pages, std::uint32_t cycles, std::uint32_t phase_count) {
  Trace trace{"phases", std::vector<std::uint32_t>(phase_count, pages), {}};
  for (std::uint32_t phase = 1; phase <= phase_count; ++phase)
    for (std::uint32_t cycle = 0; cycle < cycles; ++cycle) scan_once(trace, phase);
  return trace;
}

Trace layers(std::uint32_t regions, std::uint32_t pages, std::uint32_t cycles, bool and_back) {
  Trace trace{and_back ? "layers, there and back" : "layers", std::vector<std::uint32_t>(regions, pages), {}};
  for (std::uint32_t cycle = 0; cycle < cycles; ++cycle) {
    for (std::uint32_t region = 1; region <= regions; ++region) scan_once(trace, region);
    for (std::uint32_t region = regions; and_back && region >= 1; --region) scan_once(trace, region);
  }
  return trace;
}

}  // namespace vmem::migration::testing
