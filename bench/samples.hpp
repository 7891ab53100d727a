// Repeated measurements of one figure, in an order that exposes both sides to the same drift.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "base/status.hpp"

namespace vmem::bench {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double nanoseconds() const { return seconds() * 1e9; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  std::size_t count() const { return values_.size(); }
  // Of an even number of samples: the mean of the middle two.
  double median() const {
    if (values_.empty()) return 0;
    const std::vector<double> in_order = sorted();
    return (in_order[(in_order.size() - 1) / 2] + in_order[in_order.size() / 2]) / 2;
  }
  double best() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }
  double quantile(double q) const {
    if (values_.empty()) return 0;
    return sorted()[std::min(static_cast<std::size_t>(q * static_cast<double>(count())), count() - 1)];
  }
  std::array<double, 3> quartiles() const { return {quantile(0.25), median(), quantile(0.75)}; }
  // (largest - smallest) / median.
  double spread() const {
    if (values_.empty() || median() == 0) return 0;
    const auto [low, high] = std::minmax_element(values_.begin(), values_.end());
    return (*high - *low) / median();
  }

 private:
  std::vector<double> sorted() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }

  std::vector<double> values_;
};

struct Measured {
  Samples limit;
  Samples achieved;
};

// Order: limit, achieved, limit, ..., achieved, limit. Both sides return Result<double>.
template <class Limit, class Achieved>
Result<Measured> measure_interleaved(int repeats, Limit&& limit, Achieved&& achieved) {
  Measured measured;
  const auto sample = [](Samples& samples, auto& side) -> Status {
    VMEM_ASSIGN(const double value, side());
    samples.add(value);
    return {};
  };
  VMEM_TRY(sample(measured.limit, limit));
  for (int i = 0; i < repeats; ++i) {
    VMEM_TRY(sample(measured.achieved, achieved));
    VMEM_TRY(sample(measured.limit, limit));
  }
  return measured;
}

}  // namespace vmem::bench
