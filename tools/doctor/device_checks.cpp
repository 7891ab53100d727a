#include <fmt/format.h>

#include "base/sizes.hpp"
#include "gpu/device_info.hpp"
#include "gpu/fingerprinter.hpp"
#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {
namespace {

constexpr std::size_t kGranuleBytes = std::size_t{2} << 20;  // vmem's unit of mapping

std::string topic_of(const gpu::DeviceInfo& device) { return fmt::format("device {}", device.ordinal); }

void check_memory(Report& report, const gpu::DeviceInfo& device) {
  report.ok(topic_of(device),
            fmt::format("{}, {} of memory, {}{}{}", device.name, format_bytes(device.memory_bytes),
                        gpu::format_uuid(device.uuid), device.pci_bus_id.empty() ? "" : " at ", device.pci_bus_id));
}

void check_compute_mode(Report& report, const gpu::Driver& driver, const gpu::DeviceInfo& device) {
  CUdevice handle = 0;
  int mode = 0;
  if (driver->cuDeviceGet(&handle, device.ordinal) != CUDA_SUCCESS ||
      driver->cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, handle) != CUDA_SUCCESS)
    return;
  if (mode == CU_COMPUTEMODE_PROHIBITED)
    report.problem(topic_of(device), "its compute mode prohibits contexts", "nvidia-smi -c DEFAULT, as root");
}

void check_hbm_tier(Report& report, const gpu::DeviceInfo& device) {
  if (!device.vmm) {
    report.problem(topic_of(device), "HBM tier: no virtual memory management, without which vmem cannot map pages",
                   "use a GPU of compute capability 7.0 or newer, not under a vGPU profile that turns it off");
    return;
  }
  report.ok(topic_of(device), fmt::format("HBM tier: memory handles mapped at the pages' addresses, in units of {}",
                                          format_bytes(device.device_granularity_bytes)));
  if (device.device_granularity_bytes > kGranuleBytes)
    report.problem(topic_of(device), "these units are larger than vmem's granule of 2 MiB",
                   "report this device to the project");
}

void check_host_tier(Report& report, const gpu::DeviceInfo& device) {
  if (!device.host_vmm) {
    report.problem(topic_of(device),
                   "host tier: the driver cannot make pinned host memory as mappable handles (HOST_NUMA)",
                   "install a newer driver; under virtualisation, check that the GPU is passed through whole");
    return;
  }
  report.ok(topic_of(device),
            fmt::format("host tier: pinned memory of NUMA node {} as mappable handles (units of {}), copied over "
                        "the link and readable in place",
                        device.host_numa_node, format_bytes(device.host_granularity_bytes)));
}

constexpr const char* kWithoutKernels = "pages leave HBM with a copy even where nobody wrote to them";

void check_kernels(Report& report, const gpu::DriverRef& driver, const gpu::DeviceInfo& device) {
  if (!gpu::Fingerprinter::available(*driver)) {
    report.note(topic_of(device),
                fmt::format("this build has no GPU kernels: {}; build where nvcc is", kWithoutKernels));
    return;
  }
  const auto made = [&]() -> Status {
    CUdevice handle = 0;
    VMEM_TRY(driver->check((*driver)->cuDeviceGet(&handle, device.ordinal), "cuDeviceGet"));
    VMEM_ASSIGN(const auto context, gpu::PrimaryContext::retain(driver, handle));
    VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver, context.context()));
    VMEM_ASSIGN(const auto fingerprinter, gpu::Fingerprinter::create(driver));
    return {};
  }();
  if (made)
    report.ok(topic_of(device),
              "pages that were only read leave HBM without a copy, once a kernel found them unchanged");
  else
    report.problem(
        topic_of(device), fmt::format("the kernels do not load ({}): {}", made.error().message, kWithoutKernels),
        "check that the driver may compile PTX (CUDA_DISABLE_PTX_JIT, its JIT library), or run with protect=on");
}

void check_sharing(Report& report, const gpu::DeviceInfo& device) {
  if (device.posix_fd)
    report.ok(topic_of(device), "memory handles can be shared with other processes as file descriptors");
  else
    report.note(topic_of(device), "memory handles cannot be shared with other processes");
}

void check_peers(Report& report, const gpu::DeviceList& list, std::size_t index) {
  if (list.devices.size() == 1) return;
  std::string reachable;
  for (std::size_t other = 0; other < list.devices.size(); ++other)
    if (other != index && list.peer_access[index][other])
      reachable += fmt::format("{}{}", reachable.empty() ? "" : ", ", other);
  const std::string topic = topic_of(list.devices[index]);
  if (reachable.empty())
    report.note(topic, "reaches no other GPU's memory directly: pages travel between GPUs through the host");
  else
    report.ok(topic, fmt::format("reaches the memory of device {} directly", reachable));
}

}  // namespace

void check_devices(Report& report, const gpu::DriverRef& driver) {
  const auto list = gpu::query_devices(*driver);
  if (!list) {
    report.problem("devices", list.error().message, "check nvidia-smi, and dmesg for messages of the driver");
    return;
  }
  if (list->devices.empty())
    report.problem("devices", "the driver sees no GPU", "check nvidia-smi, and that CUDA_VISIBLE_DEVICES is not empty");
  for (std::size_t index = 0; index < list->devices.size(); ++index) {
    const gpu::DeviceInfo& device = list->devices[index];
    check_memory(report, device);
    check_compute_mode(report, *driver, device);
    check_hbm_tier(report, device);
    check_host_tier(report, device);
    check_kernels(report, driver, device);
    check_sharing(report, device);
    check_peers(report, *list, index);
  }
}

}  // namespace vmem::tools::doctor
