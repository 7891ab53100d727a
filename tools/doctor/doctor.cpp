#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {

Report examine(const std::string& which) {
  Report report;
  const auto driver = check_driver(report, which);
  if (driver) check_devices(report, driver);
  if (driver) check_storage(report, driver);
  check_host(report, driver && driver->emulated());
  check_bundled(report);
  return report;
}

}  // namespace vmem::tools::doctor
