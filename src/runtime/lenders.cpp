// GPUs whose memory takes pages of others' (the option peers): which there are, how much they lend, and to whom first.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/machine.hpp"
#include "runtime/runtime.hpp"
#include "topology/placement.hpp"

namespace vmem::runtime {

// Another GPU's memory, or what one of ours has left.
Status Runtime::start_lender(const LendingDevice& wanted) {
  const auto& driver = *driver_;
  int present = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  if (wanted.device >= present) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--peers names device {}, and there are {} (0 to {})",
                                                       wanted.device, present, present - 1));
  }
  Lender& lender = *lenders_.emplace_back(std::make_unique<Lender>());
  lender.ordinal = wanted.device;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->ordinal == wanted.device) lender.own = i;
  }
  if (!lender.own) VMEM_TRY(open_device(wanted.device, lender.device));
  const CUdevice handle = lender.own ? devices_[*lender.own]->handle : lender.device.handle;
  tiers::NearTier::Config config;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    config.devices.push_back({devices_[i]->context, devices_[i]->handle});
    int can = 0;
    if (devices_[i]->handle != handle)
      VMEM_TRY(driver.check(driver->cuDeviceCanAccessPeer(&can, devices_[i]->handle, handle), "cuDeviceCanAccessPeer"));
    lender.reached_by |= std::uint32_t(can != 0) << i;
  }
  if (lender.reached_by == 0) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers names device {}, whose memory none of the program's other devices can access: {}; "
                            "drop it, or see `vmem doctor`",
                            wanted.device,
                            devices_.size() == 1 && lender.own ? "it is the only one that the program uses"
                                                               : "no peer access between them"));
  }
  VMEM_ASSIGN(lender.bytes, lent_bytes(wanted, lender));
  config.driver = driver_;
  config.reached_by = lender.reached_by;
  config.location = {CU_MEM_LOCATION_TYPE_DEVICE, {handle}};
  config.name = fmt::format("peer {}", wanted.device);
  // Of one of our devices: the mover says how much, from its budget.
  config.budget_bytes = lender.own ? 0 : lender.bytes;
  config.largest_budget_bytes = lender.bytes;
  config.tell_changes = !options_.protect;
  config.on_ready = [this] { wake_mover(); };
  VMEM_ASSIGN(lender.memory, tiers::NearTier::create(std::move(config)));
  return {};
}

Result<std::uint64_t> Runtime::lent_bytes(const LendingDevice& wanted, const Lender& lender) const {
  if (lender.own) {
    VMEM_ASSIGN(const std::uint64_t hbm, hbm_budget(*devices_[*lender.own]));
    const std::uint64_t bytes = whole_granules(wanted.bytes.value_or(hbm));
    if (bytes <= hbm) return bytes;
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers asks device {} for {}, and its budget is {}; lower one or raise --hbm",
                            wanted.device, format_bytes(bytes), format_bytes(hbm)));
  }
  VMEM_ASSIGN(const FreeMemory memory, free_memory(lender.device));
  const std::uint64_t headroom = std::min<std::uint64_t>(options_.headroom_bytes, memory.free_bytes / 4);
  const std::uint64_t bytes = whole_granules(wanted.bytes.value_or(memory.free_bytes - headroom));
  if (bytes <= memory.free_bytes && bytes >= kSmallestLent) return bytes;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers asks device {} for {}, and it has {} free of {}; ask for less, or free GPU memory",
                          wanted.device, format_bytes(bytes), format_bytes(memory.free_bytes),
                          format_bytes(memory.total_bytes)));
}

// The nearest first; those of which the topology knows nothing last, in the order of the option.
std::vector<std::uint8_t> Runtime::lenders_of(int ordinal, std::size_t index) const {
  std::vector<std::uint8_t> lenders;
  const auto add = [&](std::size_t i) {
    const bool reached = (lenders_[i]->reached_by >> index & 1) != 0;
    if (reached && std::ranges::find(lenders, i) == lenders.end()) lenders.push_back(std::uint8_t(i));
  };
  for (const int peer : topology::peers_by_rate(topology_, ordinal)) {
    for (std::size_t i = 0; i < lenders_.size(); ++i) {
      if (lenders_[i]->ordinal == peer) add(i);
    }
  }
  for (std::size_t i = 0; i < lenders_.size(); ++i) add(i);
  return lenders;
}

}  // namespace vmem::runtime
