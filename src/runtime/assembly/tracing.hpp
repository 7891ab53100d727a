// Starts the trace that the option trace asks for.
#pragma once

#include <memory>
#include <span>

#include "base/status.hpp"
#include "migration/core.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/options/options.hpp"
#include "topology/topology.hpp"
#include "trace/recorder.hpp"

namespace vmem::runtime {

// `budgets`: of the devices, in their order. Errors: INVALID_OPTION (the file cannot be made).
Result<std::unique_ptr<trace::Recorder>> start_trace(const Options& options, const Devices& devices,
                                                     std::span<const migration::MoverDevice> budgets,
                                                     const topology::Topology& topology, std::uint64_t base);

}  // namespace vmem::runtime
