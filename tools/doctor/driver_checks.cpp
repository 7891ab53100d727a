#include <fmt/format.h>

#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {
namespace {

constexpr const char* kTopic = "driver";

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void explain_absence(Report& report, const std::string& which, const std::string& why) {
  report.problem(kTopic, fmt::format("no usable driver ('{}'): {}", which, why),
                 which == "auto"
                     ? "on a machine with an NVIDIA GPU, install its driver, 580 or newer (in a container: start it "
                       "with the GPU passed in)"
                     : "give --driver (or VMEM_DRIVER) auto, emulated, or the path of a libcuda.so.1");
  if (which == "auto" && gpu::Driver::load("emulated"))
    report.note(
        kTopic,
        "without a GPU the emulated driver serves tests, examples and `vmem bench` here; it computes on the CPU",
        "vmem doctor --driver emulated");
}

}  // namespace

std::shared_ptr<const gpu::Driver> check_driver(Report& report, const std::string& which) {
  auto driver = gpu::Driver::load(which);
  if (!driver) {
    explain_absence(report, which, driver.error().message);
    return nullptr;
  }
  const gpu::Driver& loaded = **driver;
  report.ok(kTopic, fmt::format("{} supports CUDA {}", loaded.path(), version_text(loaded.version())));
  if (loaded.emulated())
    report.note(kTopic,
                "this is the emulated driver: for tests and for trying out; its figures say nothing about a GPU");
  if (!loaded->cuMemcpyBatchAsync) report.note(kTopic, "no batched copies: many small copies are queued one by one");
  return *driver;
}

}  // namespace vmem::tools::doctor
