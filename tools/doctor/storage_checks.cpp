#include <fmt/format.h>

#include "gpu/cufile.hpp"
#include "gpu/handles.hpp"
#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {

void check_storage(Report& report, const std::shared_ptr<const gpu::Driver>& driver) {
  constexpr const char* kTopic = "storage";
  const auto primary = gpu::PrimaryContext::retain(driver, 0);
  if (!primary) return;  // check_devices reports it
  const auto current = gpu::ScopedContext::push(driver, primary->context());
  if (!current) return;
  const auto cufile = gpu::CuFile::load(*driver, gpu::CuFile::Accept::direct);
  if (cufile) {
    report.ok(kTopic,
              fmt::format("GPUDirect Storage by {}: whole pages of files go from disks straight to HBM, where a trial "
                          "of the file shows that they can",
                          (*cufile)->describe()));
    return;
  }
  report.note(
      kTopic,
      fmt::format("no GPUDirect Storage: {}; pages from disks come through host memory", cufile.error().message),
      "if the disks are NVMe: install nvidia-fs, or let cuFile use PCI P2PDMA (use_pci_p2pdma in cufile.json)");
}

}  // namespace vmem::tools::doctor
