// `vmem doctor`: the machine's capabilities, and fixes for its problems.
#pragma once

#include <memory>
#include <string>

#include "gpu/driver.hpp"
#include "tools/doctor/report.hpp"

namespace vmem::tools::doctor {

// Runs all checks, with the driver that `driver` names as in Driver::load. Changes nothing on the
// machine.
Report examine(const std::string& driver);

// The parts of examine().
void check_host(Report& report, bool emulated);
// Returns null if no driver can be used.
std::shared_ptr<const gpu::Driver> check_driver(Report& report, const std::string& which);
// Ways from disks to HBM.
void check_storage(Report& report, const std::shared_ptr<const gpu::Driver>& driver);
// UCX, and whether it moves GPU memory. `driver` may be null.
void check_network(Report& report, const std::shared_ptr<const gpu::Driver>& driver);
void check_devices(Report& report, const std::shared_ptr<const gpu::Driver>& driver);
// Libraries inside of vmem's binaries, with their versions.
void check_bundled(Report& report);

}  // namespace vmem::tools::doctor
