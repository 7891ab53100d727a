// `vmem doctor`: what this machine can do, and what to fix.
#pragma once

#include <memory>
#include <string>

#include "gpu/driver.hpp"
#include "tools/doctor/report.hpp"

namespace vmem::tools::doctor {

// Everything, with the driver that `driver` names as Driver::load does. Changes nothing on the machine.
Report examine(const std::string& driver);

// The parts of it.
void check_host(Report& report, bool emulated);
// The driver, or null when none can be used.
std::shared_ptr<const gpu::Driver> check_driver(Report& report, const std::string& which);
// Ways from disks to HBM.
void check_storage(Report& report, const std::shared_ptr<const gpu::Driver>& driver);
void check_devices(Report& report, const std::shared_ptr<const gpu::Driver>& driver);

}  // namespace vmem::tools::doctor
