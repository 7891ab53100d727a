#include "base/metrics.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string_view>

namespace vmem {
namespace {

TEST(Metrics, EveryFigureOfTheStatisticsHasOneRowInOrder) {
  const vmem_statistics statistics{};
  const auto* const base = reinterpret_cast<const std::byte*>(&statistics);
  std::size_t next = offsetof(vmem_statistics, space_bytes);
  for (const Metric& metric : metric_table()) {
    const auto at = std::size_t(reinterpret_cast<const std::byte*>(&(statistics.*metric.value)) - base);
    EXPECT_EQ(at, next) << metric.name;
    next = at + sizeof(std::uint64_t);
  }
  EXPECT_EQ(next, sizeof(vmem_statistics)) << "a figure has no row";
}

TEST(Metrics, NamesAreUniqueAndSayTheirUnit) {
  std::set<std::string_view> names;
  for (const Metric& metric : metric_table()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_FALSE(metric.help.empty()) << metric.name;
    EXPECT_EQ(metric.name.ends_with("_bytes"), metric.unit == Metric::Unit::bytes) << metric.name;
    EXPECT_EQ(metric.name.ends_with("_us"), metric.unit == Metric::Unit::microseconds) << metric.name;
  }
}

}  // namespace
}  // namespace vmem
