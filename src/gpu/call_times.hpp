// Driver decorator that measures the duration of every driver call, per calling thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/driver.hpp"

namespace vmem::gpu {

struct CallTime {
  std::string thread;         // thread name; threads of equal name are summed
  std::string_view function;  // "cuMemSetAccess"
  std::uint64_t calls = 0, ns = 0, most_ns = 0;
};

// Passes every call on and records its duration. The functions of a driver table cannot carry a
// `this` pointer. Therefore one such driver is in force per process: the latest made. Each calling
// thread allocates 2 KiB, kept until the process ends.
std::shared_ptr<const Driver> with_call_times(const std::shared_ptr<const Driver>& inner);

// Returns the calls since the last take_call_times, by thread, longest total time first.
std::vector<CallTime> take_call_times();

// One line per entry: thread, function, calls, total time, mean, longest.
std::string words_of(std::span<const CallTime> times);

}  // namespace vmem::gpu
