// GPUs whose memory takes pages of others' (the option peers): which there are, how much they lend, and to whom first. And what other
// processes borrow of ours (the option lend).
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gpu/memory_location.hpp"
#include "runtime/machine.hpp"
#include "runtime/runtime.hpp"
#include "topology/placement.hpp"

namespace vmem::runtime {
namespace {

// What a socket's other end says knows nothing of options.
template <class T>
Result<T> of_option(const char* flag, Result<T> result) {
  if (!result) result.error().message = fmt::format("{}: {}", flag, result.error().message);
  return result;
}

}  // namespace

// Another GPU's memory, or what one of ours has left.
Status Runtime::start_lender(const LendingDevice& wanted) {
  const auto& driver = *driver_;
  Lender& lender = *lenders_.emplace_back(std::make_unique<Lender>());
  if (wanted.socket.empty()) {
    int present = 0;
    VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
    if (wanted.device >= present) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--peers names device {}, and there are {} (0 to {})",
                                                         wanted.device, present, present - 1));
    }
    lender.ordinal = wanted.device;
  } else {
    VMEM_TRY(borrow(wanted, lender));
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->ordinal == lender.ordinal) lender.own = i;
  }
  if (lender.borrower && lender.own) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers: at {} device {} is lent, which this program uses itself; raise --hbm instead, or "
                            "name other --devices",
                            wanted.socket, lender.ordinal));
  }
  if (!lender.own) VMEM_TRY(open_device(lender.ordinal, lender.device));
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
                            lender.ordinal,
                            devices_.size() == 1 && lender.own ? "it is the only one that the program uses"
                                                               : "no peer access between them"));
  }
  if (!lender.borrower) {
    VMEM_ASSIGN(lender.bytes, lent_bytes(wanted, lender));
  }
  config.driver = driver_;
  config.reached_by = lender.reached_by;
  config.location = gpu::on_device(handle);
  config.name = lender.borrower ? fmt::format("peer {} of process {}", lender.ordinal, lender.borrower->lender())
                                : fmt::format("peer {}", lender.ordinal);
  config.source = lender.borrower.get();
  // Of one of our devices the mover says how much, from its budget; of another process's that one does.
  config.budget_bytes = lender.own || lender.borrower ? 0 : lender.bytes;
  config.largest_budget_bytes = lender.bytes;
  config.on_ready = [this] { wake_mover(); };
  VMEM_ASSIGN(lender.memory, tiers::NearTier::create(std::move(config)));
  if (!lender.borrower) return {};
  lender.borrower->start([this, memory = lender.memory.get(), most = lender.bytes](std::uint64_t bytes) {
    memory->set_budget(std::min(bytes, most));
    wake_mover();
  });
  return {};
}

// Finds the process that lends, and which of the GPUs that we see is lent.
Status Runtime::borrow(const LendingDevice& wanted, Lender& lender) const {
  const auto& driver = *driver_;
  VMEM_ASSIGN(lender.borrower,
              of_option("--peers", peer::Borrower::connect({.driver = driver_, .path = wanted.socket})));
  lender.bytes = std::min(lender.borrower->most_bytes(), wanted.bytes.value_or(lender.borrower->most_bytes()));
  int present = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  for (lender.ordinal = 0; lender.ordinal < present; ++lender.ordinal) {
    CUdevice handle = 0;
    CUuuid uuid{};
    VMEM_TRY(driver.check(driver->cuDeviceGet(&handle, lender.ordinal), "cuDeviceGet"));
    VMEM_TRY(driver.check(driver->cuDeviceGetUuid(&uuid, handle), "cuDeviceGetUuid"));
    if (std::memcmp(uuid.bytes, lender.borrower->device().data(), sizeof uuid.bytes) == 0) return {};
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers: at {} process {} lends a GPU that this program does not see; add it to "
                          "CUDA_VISIBLE_DEVICES, and keep it out of --devices",
                          wanted.socket, lender.borrower->lender()));
}

// Of a device that this program uses; what it needs for itself is asked back.
Status Runtime::start_lending(const LentDevice& wanted) {
  const auto own = std::ranges::find(devices_, wanted.device, [](const auto& device) { return device->ordinal; });
  if (own == devices_.end()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--lend names device {}, which this program does not use; a program may take an idle GPU "
                            "itself, with --peers {}",
                            wanted.device, wanted.device));
  }
  const bool peer = std::ranges::any_of(lenders_, [&](const auto& each) { return each->ordinal == wanted.device; });
  if (peer) {
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("--lend and --peers name device {}: it lends to other processes or to the other GPUs of this "
                    "one; drop one",
                    wanted.device));
  }
  VMEM_ASSIGN(const std::uint64_t hbm, hbm_budget(**own));
  LendingOut out{.own = std::size_t(own - devices_.begin()), .most_bytes = whole_granules(wanted.bytes.value_or(hbm))};
  if (out.most_bytes > hbm) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--lend offers {} of device {}, and its budget is {}; lower one or raise --hbm",
                            format_bytes(out.most_bytes), wanted.device, format_bytes(hbm)));
  }
  VMEM_ASSIGN(out.lender, of_option("--lend", peer::Lender::create({.driver = driver_,
                                                                    .device = (*own)->handle,
                                                                    .context = (*own)->context,
                                                                    .path = wanted.socket,
                                                                    .most_bytes = out.most_bytes,
                                                                    .on_change = [this] { wake_mover(); }})));
  lending_out_.push_back(std::move(out));
  return {};
}

migration::LentMemory Runtime::lent_memory(const Lender& lender) {
  migration::LentMemory lent;
  lent.tier = lender.memory.get();
  lent.in_place = lender.memory.get();
  lent.reached_by = lender.reached_by;
  lent.set_budget = [memory = lender.memory.get()](std::uint64_t bytes) { memory->set_budget(bytes); };
  if (lender.own) {
    lent.lender = int(*lender.own);
    lent.reached_by |= 1u << *lender.own;
  }
  lent.most_bytes = lender.bytes;
  lent.revocable = lender.borrower != nullptr;
  return lent;
}

migration::LentOut Runtime::lent_out(const LendingOut& out) {
  return {.lender = int(out.own),
          .most_bytes = out.most_bytes,
          .set_limit = [lender = out.lender.get()](std::uint64_t bytes) { lender->set_limit(bytes); },
          .held = [lender = out.lender.get()]() -> migration::LentOut::Held {
            const peer::Lender::Usage usage = lender->usage();
            return {usage.held_bytes, usage.overdue_bytes};
          }};
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
