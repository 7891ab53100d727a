#include "runtime/assembly/peer_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/device_info.hpp"
#include "gpu/memory_location.hpp"
#include "runtime/assembly/machine.hpp"
#include "topology/placement.hpp"

namespace vmem::runtime {
namespace {

// Adds the option's name to an error from the socket's code.
template <class T>
Result<T> of_option(const char* flag, Result<T> result) {
  if (!result) result.error().message = fmt::format("{}: {}", flag, result.error().message);
  return result;
}

}  // namespace

Result<std::unique_ptr<PeerMemory>> PeerMemory::start(const Options& options, std::shared_ptr<const gpu::Driver> driver,
                                                      const Devices& devices, std::function<void()> wake) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(options, std::move(driver), devices, std::move(wake)));
  for (const PeerSpec& peer : options.peers) VMEM_TRY(memory->add_peer(peer));
  for (const LendSpec& lent : options.lend) VMEM_TRY(memory->lend(lent));
  return memory;
}

void PeerMemory::stop_borrowing() {
  for (const auto& peer : peers_) {
    if (peer->borrower) peer->borrower->stop();
  }
}

void PeerMemory::borrow_from(const std::vector<FoundLender>& found, const topology::Topology& topology) {
  for (const FoundLender& lender : found) {
    const auto node = static_cast<std::uint64_t>(lender.node);
    if (const Status added = add_found(lender, topology); !added)
      VMEM_LOG_INFO(
          "node {} of this host lends {} of HBM to programs that map it; this program does not: {}. What it "
          "lends over the network is used all the same",
          node, format_bytes(lender.hbm.bytes), added.error().message);
  }
}

Status PeerMemory::add_found(const FoundLender& lender, const topology::Topology& topology) {
  VMEM_ASSIGN(const auto visible, visible_gpus());
  std::vector<int> devices;
  for (const auto& device : devices_) devices.push_back(device->ordinal);
  VMEM_ASSIGN(const LenderUse use, use_of(lender, visible, devices, topology));
  auto peer = std::make_unique<PeerGpu>();
  peer->ordinal = use.ordinal;
  peer->used_by = use.used_by;
  peer->node = lender.node;
  VMEM_ASSIGN(peer->borrower, peer::Borrower::connect({.driver = driver_, .path = lender.hbm.socket}));
  if (gpu::format_uuid(peer->borrower->device()) != lender.hbm.gpu)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("at {} process {} lends another GPU", lender.hbm.socket, peer->borrower->lender()));
  if (has_borrowed_from(*peer->borrower)) return {};  // --peers names it, too
  peer->bytes = peer->borrower->most_bytes();
  peer->device = std::make_unique<Device>(driver_);
  VMEM_TRY(peer->device->open(peer->ordinal));
  VMEM_TRY(find_reach(*peer));
  const std::uint64_t bytes = peer->bytes;
  VMEM_TRY(add_tier(std::move(peer)));
  VMEM_LOG_INFO("pages that leave HBM go to {} of device {}'s memory first, which node {} lends and this program maps",
                format_bytes(bytes), use.ordinal, static_cast<std::uint64_t>(lender.node));
  return {};
}

// A process has at most one lender for a GPU.
bool PeerMemory::has_borrowed_from(const peer::Borrower& lender) const {
  return std::ranges::any_of(peers_, [&](const auto& each) {
    return each->borrower && each->borrower->lender() == lender.lender() && each->borrower->device() == lender.device();
  });
}

Status PeerMemory::add_peer(const PeerSpec& wanted) {
  auto made = std::make_unique<PeerGpu>();
  PeerGpu& peer = *made;
  if (wanted.socket.empty()) {
    VMEM_ASSIGN(peer.ordinal, ordinal_of(wanted));
  } else {
    VMEM_TRY(borrow(wanted, peer));
  }
  VMEM_TRY(find_own(wanted, peer));
  VMEM_TRY(find_reach(peer));
  if (!peer.borrower) {
    VMEM_ASSIGN(peer.bytes, peer_bytes(wanted, peer));
  }
  return add_tier(std::move(made));
}

Status PeerMemory::add_tier(std::unique_ptr<PeerGpu> added) {
  VMEM_TRY(create_tier(*added));
  PeerGpu& peer = *peers_.emplace_back(std::move(added));
  if (!peer.borrower) return {};
  peer.borrower->start([wake = wake_, memory = peer.memory.get(), most = peer.bytes](std::uint64_t bytes) {
    memory->set_budget(std::min(bytes, most));
    wake();
  });
  return {};
}

Result<std::vector<VisibleGpu>> PeerMemory::visible_gpus() const {
  const auto& driver = *driver_;
  int present = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  std::vector<VisibleGpu> gpus;
  for (int ordinal = 0; ordinal < present; ++ordinal) {
    CUdevice handle = 0;
    CUuuid uuid{};
    VMEM_TRY(driver.check(driver->cuDeviceGet(&handle, ordinal), "cuDeviceGet"));
    VMEM_TRY(driver.check(driver->cuDeviceGetUuid(&uuid, handle), "cuDeviceGetUuid"));
    std::array<std::uint8_t, 16> bytes{};
    std::memcpy(bytes.data(), uuid.bytes, bytes.size());
    VMEM_ASSIGN(const std::uint32_t reached_by, devices_that_reach(handle));
    gpus.push_back({.ordinal = ordinal, .uuid = gpu::format_uuid(bytes), .reached_by = reached_by});
  }
  return gpus;
}

// Bit i: device i can map the GPU's memory.
Result<std::uint32_t> PeerMemory::devices_that_reach(CUdevice gpu) const {
  const auto& driver = *driver_;
  std::uint32_t all = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    int can = 0;
    if (devices_[i].handle != gpu)
      VMEM_TRY(driver.check(driver->cuDeviceCanAccessPeer(&can, devices_[i].handle, gpu), "cuDeviceCanAccessPeer"));
    all |= std::uint32_t(can != 0) << i;
  }
  return all;
}

Result<int> PeerMemory::ordinal_of(const PeerSpec& wanted) const {
  int present = 0;
  VMEM_TRY(driver_->check((*driver_)->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  if (wanted.device < present) return wanted.device;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers names device {}, and there are {} (0 to {})", wanted.device, present, present - 1));
}

// Sets `own` if the program uses the GPU itself, else opens it.
Status PeerMemory::find_own(const PeerSpec& wanted, PeerGpu& peer) const {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].ordinal == peer.ordinal) peer.own = i;
  }
  if (peer.borrower && peer.own) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers: at {} device {} is lent, which this program uses itself; raise --hbm instead, or "
                            "name other --devices",
                            wanted.socket, peer.ordinal));
  }
  if (peer.own) return {};
  peer.device = std::make_unique<Device>(driver_);
  return peer.device->open(peer.ordinal);
}

Status PeerMemory::find_reach(PeerGpu& peer) const {
  const auto& driver = *driver_;
  const CUdevice handle = gpu_of(peer).handle;
  VMEM_ASSIGN(peer.reached_by, devices_that_reach(handle));
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if ((peer.reached_by >> i & 1) == 0) continue;
    int can_back = 0;
    VMEM_TRY(
        driver.check(driver->cuDeviceCanAccessPeer(&can_back, handle, devices_[i].handle), "cuDeviceCanAccessPeer"));
    peer.reaches |= std::uint32_t(can_back != 0) << i;
  }
  if (peer.reached_by != 0) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers names device {}, whose memory none of the program's other devices can access: {}; "
                          "drop it, or see `vmem doctor`",
                          peer.ordinal,
                          devices_.size() == 1 && peer.own ? "it is the only one that the program uses"
                                                           : "no peer access between them"));
}

std::string PeerMemory::name_of(const PeerGpu& peer) {
  if (peer.node) return fmt::format("peer {} of node {}", peer.ordinal, static_cast<std::uint64_t>(*peer.node));
  if (peer.borrower) return fmt::format("peer {} of process {}", peer.ordinal, peer.borrower->lender());
  return fmt::format("peer {}", peer.ordinal);
}

Status PeerMemory::create_tier(PeerGpu& peer) const {
  tiers::NearTier::Config config;
  config.driver = driver_;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const bool copies = (peer.reaches & peer.used_by) >> i & 1;
    config.devices.push_back({devices_[i].context, devices_[i].handle, copies ? gpu_of(peer).context : nullptr});
  }
  config.reached_by = peer.reached_by;
  config.location = gpu::on_device(gpu_of(peer).handle);
  config.name = name_of(peer);
  config.source = peer.borrower.get();
  // The mover sets the budget for a GPU in use, and the lending process sets it for a borrowed GPU.
  config.budget_bytes = peer.own || peer.borrower ? 0 : peer.bytes;
  config.largest_budget_bytes = peer.bytes;
  config.on_ready = wake_;
  VMEM_ASSIGN(peer.memory, tiers::NearTier::create(std::move(config)));
  return {};
}

// Finds the lending process, and which visible GPU it lends.
Status PeerMemory::borrow(const PeerSpec& wanted, PeerGpu& peer) const {
  VMEM_ASSIGN(peer.borrower, of_option("--peers", peer::Borrower::connect({.driver = driver_, .path = wanted.socket})));
  peer.bytes = std::min(peer.borrower->most_bytes(), wanted.bytes.value_or(peer.borrower->most_bytes()));
  VMEM_ASSIGN(const auto visible, visible_gpus());
  const auto lent = std::ranges::find(visible, gpu::format_uuid(peer.borrower->device()), &VisibleGpu::uuid);
  if (lent != visible.end()) {
    peer.ordinal = lent->ordinal;
    return {};
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers: at {} process {} lends a GPU that this program does not see; add it to "
                          "CUDA_VISIBLE_DEVICES, and keep it out of --devices",
                          wanted.socket, peer.borrower->lender()));
}

// Lends a device in use; the mover reclaims lent memory when the program needs it.
Status PeerMemory::lend(const LendSpec& wanted) {
  const auto own = devices_.index_of(wanted.device);
  if (!own) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--lend names device {}, which this program does not use; a program may take an idle GPU "
                            "itself, with --peers {}",
                            wanted.device, wanted.device));
  }
  const bool is_peer = std::ranges::any_of(peers_, [&](const auto& each) { return each->ordinal == wanted.device; });
  if (is_peer) {
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("--lend and --peers name device {}: a GPU lends either to other processes (--lend) or to this "
                    "program's other GPUs (--peers); drop one",
                    wanted.device));
  }
  const Device& device = devices_[std::size_t(*own)];
  VMEM_ASSIGN(const std::uint64_t hbm, hbm_budget(options_, device));
  LentGpu gpu{.own = std::size_t(*own), .most_bytes = whole_granules(wanted.bytes.value_or(hbm)), .lender = {}};
  if (gpu.most_bytes > hbm) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--lend offers {} of device {}, and its budget is {}; lower one or raise --hbm",
                            format_bytes(gpu.most_bytes), wanted.device, format_bytes(hbm)));
  }
  VMEM_ASSIGN(gpu.lender, of_option("--lend", peer::Lender::create({.driver = driver_,
                                                                    .device = device.handle,
                                                                    .context = device.context,
                                                                    .path = wanted.socket,
                                                                    .most_bytes = gpu.most_bytes,
                                                                    .on_change = wake_})));
  lent_.push_back(std::move(gpu));
  return {};
}

migration::PeerTier PeerMemory::memory_of(const PeerGpu& peer) {
  migration::PeerTier lent;
  lent.tier = peer.memory.get();
  lent.in_place = peer.memory.get();
  lent.reached_by = peer.reached_by;
  lent.set_budget = [memory = peer.memory.get()](std::uint64_t bytes) { memory->set_budget(bytes); };
  if (peer.own) {
    lent.lender = int(*peer.own);
    lent.reached_by |= 1u << *peer.own;
  }
  lent.most_bytes = peer.bytes;
  lent.revocable = peer.borrower != nullptr;
  return lent;
}

migration::Loan PeerMemory::loan_of(const LentGpu& gpu) {
  return {.lender = int(gpu.own),
          .most_bytes = gpu.most_bytes,
          .set_limit = [lender = gpu.lender.get()](std::uint64_t bytes) { lender->set_limit(bytes); },
          .held = [lender = gpu.lender.get()]() -> migration::Loan::InUse {
            const peer::Lender::Usage usage = lender->usage();
            return {usage.held_bytes, usage.overdue_bytes};
          }};
}

Result<std::uint64_t> PeerMemory::peer_bytes(const PeerSpec& wanted, const PeerGpu& peer) const {
  if (peer.own) {
    VMEM_ASSIGN(const std::uint64_t hbm, hbm_budget(options_, devices_[*peer.own]));
    const std::uint64_t bytes = whole_granules(wanted.bytes.value_or(hbm));
    if (bytes <= hbm) return bytes;
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers asks device {} for {}, and its budget is {}; lower one or raise --hbm",
                            wanted.device, format_bytes(bytes), format_bytes(hbm)));
  }
  VMEM_ASSIGN(const DeviceMemory memory, free_memory(*peer.device));
  const std::uint64_t headroom = std::min<std::uint64_t>(options_.headroom_bytes, memory.free_bytes / 4);
  const std::uint64_t bytes = whole_granules(wanted.bytes.value_or(memory.free_bytes - headroom));
  if (bytes <= memory.free_bytes && bytes >= kSmallestLent) return bytes;
  if (!wanted.bytes) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--peers: device {} has only {} free of {}, too little to keep pages; free GPU memory, or "
                            "drop it",
                            wanted.device, format_bytes(memory.free_bytes), format_bytes(memory.total_bytes)));
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--peers asks device {} for {}, and it has {} free of {}; ask for less, or free GPU memory",
                          wanted.device, format_bytes(bytes), format_bytes(memory.free_bytes),
                          format_bytes(memory.total_bytes)));
}

std::vector<migration::PeerTier> PeerMemory::tiers() const {
  std::vector<migration::PeerTier> memory;
  for (const auto& peer : peers_) memory.push_back(memory_of(*peer));
  return memory;
}

std::vector<migration::Loan> PeerMemory::loans() const {
  std::vector<migration::Loan> loans;
  for (const LentGpu& gpu : lent_) loans.push_back(loan_of(gpu));
  return loans;
}

// Peers that the topology does not list come last, in the option's order.
std::vector<std::uint8_t> PeerMemory::reachable_from(std::size_t device, const topology::Topology& topology) const {
  std::vector<std::uint8_t> peers;
  const auto add = [&](std::size_t i) {
    const bool used = (peers_[i]->reached_by & peers_[i]->used_by) >> device & 1;
    if (used && std::ranges::find(peers, i) == peers.end()) peers.push_back(std::uint8_t(i));
  };
  for (const int near : topology::peers_by_rate(topology, devices_[device].ordinal)) {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      if (peers_[i]->ordinal == near) add(i);
    }
  }
  for (std::size_t i = 0; i < peers_.size(); ++i) add(i);
  return peers;
}

std::vector<CUdevice> PeerMemory::copiers_of(std::size_t device) const {
  std::vector<CUdevice> copiers;
  for (const auto& peer : peers_) {
    const CUdevice handle = gpu_of(*peer).handle;
    const bool copies = (peer->reaches & peer->used_by) >> device & 1;
    if (copies && std::ranges::find(copiers, handle) == copiers.end()) copiers.push_back(handle);
  }
  return copiers;
}

}  // namespace vmem::runtime
