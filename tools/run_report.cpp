#include "tools/run_report.hpp"

#include <fmt/format.h>

#include "base/counted.hpp"
#include "base/sizes.hpp"

namespace vmem::tools {
namespace {

std::string without_gpu(CudaDriver driver) {
  const char* const advice =
      driver == CudaDriver::installed
          ? "not seen: programs linked statically, Python with -I, -E or -S, processes in other containers"
          : "there is no CUDA driver here (libcuda.so.1); `vmem run --driver emulated` tries a program without a GPU";
  return fmt::format("vmem run: nothing allocated GPU memory, so vmem did nothing\nvmem run: {}\n", advice);
}

std::string below_host(const RunFigures& total) {
  if (total.to_disk_and_nodes_bytes + total.from_disk_and_nodes_bytes == 0) return "";
  return fmt::format("; {} to disks and other nodes, {} back", format_bytes(total.to_disk_and_nodes_bytes),
                     format_bytes(total.from_disk_and_nodes_bytes));
}

}  // namespace

std::string run_report(const RunBoard::Summary& summary, CudaDriver driver) {
  if (summary.processes == 0) return summary.refused ? "" : without_gpu(driver);
  const std::string who = counted(summary.processes, "process", "processes");
  if (summary.without_figures == summary.processes)
    return fmt::format(
        "vmem run: {} used GPU memory through vmem\n"
        "vmem run: no figures: killed, ended by _exit, or still running\n",
        who);
  const RunFigures& total = summary.total;
  const std::string silent =
      summary.without_figures == 0 ? "" : fmt::format(" ({} without figures)", summary.without_figures);
  return fmt::format(
      "vmem run: {}{} with {} of HBM and {} of host memory: {}, {} of them waited for memory, {:.1f} s in all\n"
      "vmem run: moved {} into HBM and {} out{}; {} used host memory in place\n",
      who, silent, format_bytes(total.hbm_budget_bytes), format_bytes(total.host_budget_bytes),
      counted(total.launches, "launch or copy", "launches and copies"), total.launches_that_waited,
      static_cast<double>(total.wait_us) * 1e-6, format_bytes(total.into_hbm_bytes),
      format_bytes(total.out_of_hbm_bytes), below_host(total), total.in_place_launches);
}

}  // namespace vmem::tools
