#include "runtime/remote/found_lenders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "topology/placement.hpp"

namespace vmem::runtime {
namespace {

std::unexpected<Error> unused(std::string why) { return fail(VMEM_ERROR_UNSUPPORTED, std::move(why)); }

std::string rate_words(const topology::PeerAndHost& rates) {
  return fmt::format("{:.1f} GB/s, and host memory at {:.1f} GB/s", *rates.peer_bytes_per_s * 1e-9,
                     *rates.host_bytes_per_s * 1e-9);
}

}  // namespace

std::vector<FoundLender> lenders_on_host(const ClusterView& view, std::string_view boot) {
  std::vector<FoundLender> found;
  for (const ClusterNode& node : view.nodes) {
    if (boot.empty() || node.record.boot != boot || node.record.mapped.bytes == 0) continue;
    found.push_back({.node = node.id, .hbm = node.record.mapped});
  }
  std::ranges::sort(found, {}, &FoundLender::node);
  return found;
}

Result<LenderUse> use_of(const FoundLender& lender, std::span<const VisibleGpu> visible, std::span<const int> devices,
                         const topology::Topology& topology) {
  const auto gpu = std::ranges::find(visible, lender.hbm.gpu, &VisibleGpu::uuid);
  if (gpu == visible.end())
    return unused(
        fmt::format("this program does not see {}; add it to CUDA_VISIBLE_DEVICES, and name the others in "
                    "--devices",
                    lender.hbm.gpu));
  if (std::ranges::find(devices, gpu->ordinal) != devices.end())
    return unused(
        fmt::format("it lends device {}, which this program uses itself; name the others in --devices", gpu->ordinal));
  LenderUse use{.ordinal = gpu->ordinal, .used_by = 0};
  const int host = topology::host_node(topology, devices).value_or(0);
  std::string slower;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    // Any device of the program may be asked to access what another one allocated.
    if ((gpu->reached_by >> i & 1) == 0)
      return unused(fmt::format("device {} cannot access the memory of device {}: no peer access between them",
                                devices[i], gpu->ordinal));
    const topology::PeerAndHost rates = topology::peer_and_host(topology, devices[i], gpu->ordinal, host);
    if (rates.peer_first())
      use.used_by |= 1u << i;
    else
      slower = fmt::format("device {}'s memory is measured at {} for device {}", gpu->ordinal, rate_words(rates),
                           devices[i]);
  }
  if (use.used_by == 0) return unused(slower + "; `vmem topo --measure` measures again");
  return use;
}

}  // namespace vmem::runtime
