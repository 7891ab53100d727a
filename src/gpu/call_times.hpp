// A driver that notes how long its functions take: where the time of vmem's threads goes on a machine.
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
  std::string thread;         // its name; threads of one name are one
  std::string_view function;  // "cuMemSetAccess"
  std::uint64_t calls = 0, ns = 0, most_ns = 0;
};

// Passes every call on and notes it. The functions of a driver table have nowhere to keep a this pointer, so one such driver at a time is in
// force in a process: the latest made. Each thread that calls keeps 2 KiB for the life of the process.
std::shared_ptr<const Driver> with_call_times(const std::shared_ptr<const Driver>& inner);

// What was called since this was last asked, by thread, what took longest first.
std::vector<CallTime> take_call_times();

// A line for each: thread, function, calls, time in all, mean and longest.
std::string words_of(std::span<const CallTime> times);

}  // namespace vmem::gpu
