#include "runtime/remote/daemon.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <thread>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "pagetable/types.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/trust/local_socket.hpp"
#include "runtime/assembly/machine.hpp"
#include "runtime/remote/cluster_trust.hpp"
#include "runtime/remote/nodes.hpp"
#include "tiers/io/thread_queue.hpp"

namespace vmem::runtime {
namespace {

using pagetable::kGranuleBytes;

constexpr std::uint32_t kDiskDepth = 64;
constexpr std::uint64_t kLeaveUs = 10'000'000;  // for other nodes to take over what this one keeps
constexpr std::uint64_t kJoinUs = 10'000'000;   // to become a member of a cluster

// Stable across restarts at the same address, so that programs that know the daemon find it. 0 (a
// random id) if the port is chosen by the system.
std::uint32_t usual_id(const std::string& address) {
  if (address.ends_with(":0")) return 0;
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  return static_cast<std::uint32_t>(std::hash<std::string>{}(host.data() + (" " + address)));
}

// Less than one granule cannot be lent.
Status check_size(const char* flag, std::uint64_t bytes) {
  if (bytes >= kGranuleBytes) return {};
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} {}: memory is lent in units of {}; give at least that", flag,
                                                     exact_bytes(bytes), format_bytes(kGranuleBytes)));
}

// Refuses options that would do nothing: some need a cluster, and --id has no use in one.
Status check_cluster_options(const DaemonOptions& options) {
  if (options.cluster.empty()) {
    const char* const given = options.copies_bytes != 0    ? "--copies"
                              : !options.labels.empty()    ? "--label"
                              : !options.advertise.empty() ? "--advertise"
                                                           : nullptr;
    if (given == nullptr) return {};
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is for nodes of a cluster: give --cluster, too, or drop it", given));
  }
  if (options.id == 0) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--id {} is for daemons that programs name by --remote; a cluster numbers its nodes: drop "
                          "--id, or --cluster",
                          options.id));
}

// Of host memory.
Status check_available(std::uint64_t lent, std::uint64_t copies, std::uint64_t staging) {
  const std::uint64_t available = available_host_bytes();
  if (lent <= available && copies <= available - lent && staging <= available - lent - copies) return {};
  std::string parts;
  for (const auto& [what, bytes] :
       {std::pair("--lend", lent), {"--copies", copies}, {"the way to disks and HBM", staging}})
    if (bytes != 0) parts += fmt::format("{}{} for {}", parts.empty() ? "" : ", ", format_bytes(bytes), what);
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{}: {} are available of the machine's {}; ask for less, or free memory", parts,
                          format_bytes(available), format_bytes(total_host_bytes())));
}

std::uint32_t worker_count() { return std::clamp(std::thread::hardware_concurrency() / 2, 1u, 4u); }

constexpr std::uint64_t kSurelyHeardUs = 500'000;

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::start(const DaemonOptions& options) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  VMEM_TRY(daemon->open(options));
  return daemon;
}

Daemon::~Daemon() {
  // Other nodes take over what this one keeps and is home of; then nobody finds it any more.
  if (joint_) (void)joint_->directory().leave(kLeaveUs);
  member_.reset();
  host_watch_.reset();
  if (joint_) {
    joint_->stop_serving();
    (void)joint_->tier().finish();  // copies on their way are not waited for much longer
    shelf_->stop();
    joint_.reset();
    shelf_.reset();
  }
  guard_.reset();  // its last reports may go to this daemon
  if (service_) service_->stop();
  if (hbm_) hbm_->close();  // its thread calls the service, and it is registered with the node
  node_.reset();
  if (!disk_ || !disk_->quarantined()) return;
  // The kernel may still write to the memory of requests that do not end.
  (void)disk_.release();
  memory_->leave_mapped();
}

bool Daemon::on_loopback() const {
  const auto parsed = rdma::SocketAddress::parse(address());
  return parsed && parsed->is_loopback();
}

Status Daemon::reserve(const DaemonOptions& options) {
  if (options.lend_bytes != 0) VMEM_TRY(check_size("--lend", options.lend_bytes));
  if (options.client_bytes) VMEM_TRY(check_size("--per-node", *options.client_bytes));
  lent_bytes_ = options.lend_bytes / kGranuleBytes * kGranuleBytes;
  const bool stores_in_hbm = options.hbm && options.hbm->stored_bytes() != 0;
  staging_bytes_ = options.nvme.empty() && !stores_in_hbm ? 0 : kDaemonStagingBytes;
  const std::uint64_t bytes = lent_bytes_ + staging_bytes_;
  if (options.copies_bytes != 0) VMEM_TRY(check_size("--copies", options.copies_bytes));
  if (bytes == 0 && options.copies_bytes == 0 && !options.hbm)
    return fail(VMEM_ERROR_INVALID_OPTION,
                "nothing to lend: give --lend SIZE, --hbm GPU:SIZE, --nvme DIRECTORY:SIZE, or --copies SIZE with "
                "--cluster");
  VMEM_TRY(check_available(lent_bytes_, options.copies_bytes, staging_bytes_));
  if (bytes == 0) return {};
  VMEM_ASSIGN(memory_, LentMemory::create(bytes));
  return {};
}

Status Daemon::open_tiers(const DaemonOptions& options) {
  if (!options.nvme.empty()) {
    tiers::DiskTier::Config disk;
    disk.directories = options.nvme;
    disk.make_queue = [](const std::vector<int>& files) -> Result<std::unique_ptr<tiers::IoQueue>> {
      return tiers::make_io_queue({.files = files, .depth = kDiskDepth});
    };
    disk.workers = worker_count();
    disk.on_ready = [this] { service_->poke(); };
    VMEM_ASSIGN(disk_, tiers::DiskTier::create(std::move(disk)));
  }
  return options.hbm ? open_hbm(options) : Status{};
}

// The socket's name follows from the address: a daemon that is started again there replaces what it
// left when it was killed.
Status Daemon::open_hbm(const DaemonOptions& options) {
  LentHbm::Config config{.driver = options.driver,
                         .loan = *options.hbm,
                         .staging = memory_ ? memory_->bytes().subspan(lent_bytes_) : rdma::Bytes{},
                         .socket = {},
                         .on_ready = [this] { service_->poke(); }};
  if (options.hbm->mapped_bytes != 0) {
    VMEM_ASSIGN(const std::string folder, rdma::socket_directory());
    VMEM_ASSIGN(const std::string listen, resolve_address(options.listen));
    const std::uint64_t usual = usual_id(listen);
    config.socket = fmt::format("{}/hbm-{}", folder, usual != 0 ? usual : id_);
  }
  VMEM_ASSIGN(hbm_, LentHbm::open(std::move(config)));
  return {};
}

std::uint64_t Daemon::hbm_bytes() const {
  if (!hbm_) return 0;
  return (hbm_->tier() != nullptr ? hbm_->tier()->usage().budget_bytes : 0) + hbm_->mapped_part().bytes;
}

Status Daemon::open(const DaemonOptions& options) {
  VMEM_TRY(check_cluster_options(options));
  VMEM_TRY(reserve(options));
  VMEM_ASSIGN(const std::string listen, resolve_address(options.listen));
  // A cluster finds its members in the registry, so no id has to stay the same; and the usual ids
  // of two hosts with one name would collide.
  const std::uint32_t usual = options.cluster.empty() ? usual_id(listen) : 0;
  const NodeIdentity self = make_identity(options.id != 0 ? options.id : usual);
  id_ = static_cast<std::uint64_t>(self.id);
  VMEM_TRY(open_tiers(options));
  rdma::MemoryService::Config service;
  service.clock = &clock_;
  if (memory_) service.memory = memory_->bytes();
  service.staging_bytes = staging_bytes_;
  service.disk = disk_.get();
  service.hbm = hbm_ ? hbm_->tier() : nullptr;
  service.client_bytes = options.client_bytes.value_or(service.client_bytes);
  service.grace_us = options.grace_us;
  service.workers = worker_count();
  service_ = std::make_unique<rdma::MemoryService>(service);
  NodeConfig node{.self = self,
                  .listen = listen,
                  .secret = options.secret,
                  .certificates = options.certificates,
                  .fabric = options.fabric,
                  .channels = channel_count(options.channels)};
  if (!options.cluster.empty()) node.join(options.base, options.space_bytes);
  if (hbm_ && !options.fabric.empty()) node.gpu = hbm_->ask_ucx(fabric_settings(options.fabric));
  rdma::NodeSetup setup{.self = self, .make_transport = {}, .clock = &clock_, .times = {}};
  setup.make_transport = [&](rdma::Receiver& receiver) { return make_transport(node, clock_, receiver); };
  VMEM_ASSIGN(node_, rdma::Node::create(std::move(setup)));
  VMEM_TRY(service_->start(*node_));
  if (!options.cluster.empty()) VMEM_TRY(start_joint(options, node));
  node_->start();
  watch_programs();
  if (options.cluster.empty()) return {};
  VMEM_TRY(check_trust(node, {options.cluster, options.certificates}));
  return join(options, self, trust_of(node));
}

Status Daemon::start_joint(const DaemonOptions& options, const NodeConfig& node) {
  copies_bytes_ = options.copies_bytes / kGranuleBytes * kGranuleBytes;
  shelf_ = std::make_unique<PageShelf>(*node_, PageShelf::Config{.bytes = copies_bytes_});
  JointRegions::Config config;
  config.directory.registry = opener_of({options.cluster, options.certificates});
  VMEM_ASSIGN(config.directory.tenant, tenant_of(node));
  config.directory.copies = copies_bytes_ == 0 ? nullptr : shelf_.get();
  config.directory.fence = &fence_;
  config.tier.workers = worker_count();
  config.tier.on_ready = [this] { node_->wake(); };
  VMEM_ASSIGN(joint_, JointRegions::create(*node_, std::move(config)));
  shelf_->begin(joint_->directory(), joint_->tier());
  joint_->serve(*shelf_);
  return {};
}

cluster::Holdings Daemon::holdings() const {
  const rdma::ServiceStatistics lent = statistics();
  const peer::Lender::Usage mapped = mapped_hbm_usage();
  const std::uint64_t slabs = hbm_ && hbm_->tier() != nullptr ? hbm_->tier()->slab_bytes() : 0;
  return {.memory = lent.held.memory,
          .disk = lent.held.disk,
          .hbm = lent.held.hbm + mapped.held_bytes,
          .copies = copies().bytes,
          .leased = lent.lent.sum(),
          .hbm_taken = slabs + mapped.held_bytes,
          .hbm_mapped = mapped.held_bytes,
          .hbm_mapper = static_cast<std::uint64_t>(mapped.largest),
          .hbm_direct = lent.hbm_direct,
          .hbm_staged = lent.hbm_staged};
}

void Daemon::see(const ClusterView& view) {
  joint_->directory().see(view);
  host_watch_->see(view);
  const bool drains = view.drain.has_value(), changes = drains != drain_.has_value();
  if (drains && changes) drains_since_us_ = clock_.now_us();
  if (hbm_ && (changes || view.hbm_limit != hbm_limit_)) hbm_->set_limit(view.hbm_limit, drains);
  drain_ = view.drain;
  service_->set_draining(drains);
  hbm_limit_ = view.hbm_limit;
}

// While it drains, room that was given back is not lent again. A lease that was granted before the
// service heard of that shows within kSurelyHeardUs.
cluster::Holdings Daemon::look() {
  cluster::Holdings holds = holdings();
  holds.drains = drain_ && clock_.now_us() - drains_since_us_ >= kSurelyHeardUs;
  if (holds.drains && drain_->exit && !holds.any()) over_.store(true, std::memory_order_release);
  return holds;
}

// Called last: programs use a member at once.
Status Daemon::join(const DaemonOptions& options, const NodeIdentity& self, std::string trust) {
  Member::Config config{.registry = {options.cluster, options.certificates},
                        .parameters = cluster_parameters(options.base, options.space_bytes),
                        .record = this_host("daemon", self.incarnation),
                        .lease_s = options.node_lease_s,
                        .fence = fence_,
                        .seen = {},
                        .expelled = {}};
  VMEM_ASSIGN(host_watch_, HostWatch::start(config.registry));
  config.seen = [this](const ClusterView& view, bool) { see(view); };
  config.holdings = [this] { return look(); };
  config.expelled = [this](const std::vector<cluster::Slice>&) { joint_->directory().expelled(); };
  config.record.transport = static_cast<std::uint64_t>(self.id);
  config.record.trust = std::move(trust);
  config.record.addresses = options.advertise;
  if (config.record.addresses.empty()) {
    const auto listens = rdma::SocketAddress::parse(address());
    if (listens && listens->is_unspecified())
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("--listen {} takes connections to any address of this machine; say by --advertise "
                              "HOST:PORT where the cluster's other nodes reach it",
                              address()));
    config.record.addresses = {address()};
  }
  config.record.lends = {.memory = memory_bytes(), .disk = disk_bytes(), .hbm = hbm_bytes(), .copies = copies_bytes_};
  config.record.mapped = mapped_hbm();
  if (hbm_) config.record.labels[std::string(cluster::kHbmLabel)] = hbm_->describe();
  for (const auto& [name, value] : options.labels) config.record.labels[name] = value;
  VMEM_ASSIGN(member_, Member::join(std::move(config), kJoinUs));
  return {};
}

// Starts the guard of this user's programs on this host. Without a guard, the lease of a killed
// program ends with its grace period.
void Daemon::watch_programs() {
  auto guard = Guard::of_daemon();
  if (!guard) {
    VMEM_LOG_WARN(
        "this daemon cannot see when programs on this host are killed, so their leases end by --grace only: {}",
        guard.error().message);
    return;
  }
  guard_ = *std::move(guard);
  guard_->start();
}

}  // namespace vmem::runtime
