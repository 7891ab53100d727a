// Measures rates with the driver's copies over memory as vmem uses it: handles mapped for every
// device with access. Takes about 50 ms for each pair of memories and direction, and at most 256
// MiB of each memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "gpu/handles.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

struct MeasureOptions {
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;  // per memory; a multiple of 2 MiB
  std::uint64_t time_us = 20'000;                        // per measurement, after its first copy
  // receives the name of the next measurement
  std::function<void(std::string_view)> on_step;
};

// Fills in copies between each device and each NUMA node, and between each device and its reachable
// peers. Derives link rates: a device's PCIe link, also both directions in sum; switches' uplinks
// under the copies of all devices below; NVLinks. A failed measurement stays unknown and is noted
// in `unknown`. Errors: DRIVER, if no device can be used.
Status measure(Topology& topology, const gpu::DriverRef& driver, const MeasureOptions& options = {});

// Writes and reads a file of `bytes` in `directory`, bypassing the page cache, and adds the
// directory as a disk: at the disk that holds it if the topology has that disk, else at the lowest
// NUMA node. Errors: INVALID_OPTION (naming the directory and the failure).
Status measure_directory(Topology& topology, const std::string& directory,
                         std::uint64_t bytes = std::uint64_t{256} << 20);

}  // namespace vmem::topology
