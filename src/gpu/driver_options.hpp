// Options of this module. The CUDA driver and the GPUs in use.
#pragma once

#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct DriverOptions {
  std::vector<int> devices;     // --devices: "all" (empty) or "0,1"
  std::string driver = "auto";  // --driver: auto, emulated, or a path
  bool call_times = false;      // --call-times: on: report the driver functions' times at exit
};

std::vector<Option<DriverOptions>> driver_options();

}  // namespace vmem
