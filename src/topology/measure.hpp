// Rates, by the driver's copies over memory as vmem uses it: handles mapped where every device may reach them. Takes about 50 ms
// for each pair of memories and direction, and at most 256 MiB of each memory.
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
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;  // of each memory; a multiple of 2 MiB
  std::uint64_t time_us = 20'000;                        // of each figure, once its first copy is done
  std::function<void(std::string_view)> on_step;         // what is measured next
};

// Fills in copies between each device and each NUMA node, and each device and the peers in its reach; from them the rates of the
// links that they measure: a device's PCIe link, both directions in sum, switches' ways up under the copies of all devices below,
// NVLinks. What fails is left unknown and said so. Errors: DRIVER, where no device can be used at all.
Status measure(Topology& topology, const gpu::DriverRef& driver, const MeasureOptions& options = {});

// Writes and reads a file of `bytes` in `directory`, past the page cache, and adds the directory as a disk: at the disk that holds
// it where the topology shows that, at the lowest NUMA node otherwise. Errors: INVALID_OPTION (naming the directory and what failed).
Status measure_directory(Topology& topology, const std::string& directory,
                         std::uint64_t bytes = std::uint64_t{256} << 20);

}  // namespace vmem::topology
