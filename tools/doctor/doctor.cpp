#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {

Report examine(const std::string& which) {
  Report report;
  const auto driver = check_driver(report, which);
  if (driver) check_devices(report, driver);
  if (driver) check_storage(report, driver);
#ifndef __SANITIZE_THREAD__  // it replaces memory functions of the process, and so does UCX
  check_network(report, driver);
#endif
  check_host(report, driver && driver->emulated());
  check_bundled(report);
  return report;
}

}  // namespace vmem::tools::doctor
