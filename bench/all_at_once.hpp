// Several measurements at the same time, which share whatever they share.
#pragma once

#include <cstddef>
#include <future>
#include <vector>

#include "base/status.hpp"

namespace vmem::bench {

// The sum of rate(0) .. rate(count - 1), each in its own thread. Errors: the first.
template <class Rate>
Result<double> sum_all_at_once(std::size_t count, const Rate& rate) {
  std::vector<std::future<Result<double>>> running;
  running.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    running.push_back(std::async(std::launch::async, [&rate, i]() -> Result<double> { return rate(i); }));
  Result<double> sum = 0;
  for (auto& each : running) {
    Result<double> one = each.get();
    if (!one && sum)
      sum = std::move(one);
    else if (one && sum)
      *sum += *one;
  }
  return sum;
}

}  // namespace vmem::bench
