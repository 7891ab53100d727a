#include "runtime/remote/remote.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/process.hpp"
#include "base/process_id.hpp"
#include "cluster/peers.hpp"
#include "cluster/registry/etcd/address.hpp"
#include "runtime/remote/guard.hpp"
#include "runtime/remote/nodes.hpp"
#include "runtime/remote/ucx_gpu.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kStartUs = 10'000'000;   // to reach all nodes
constexpr std::uint64_t kRequestUs = 2'000'000;  // for one page, there and back
constexpr std::uint64_t kLeastRequestUs = 50'000;
constexpr std::uint64_t kLeaveUs = 2'000'000;  // for others to take over regions

rdma::RemoteTier::Credentials credentials_of(const NodeConfig& node) {
  using Credentials = rdma::RemoteTier::Credentials;
  if (!node.secret.empty()) return Credentials::secret;
  return node.certificates.empty() ? Credentials::user : Credentials::certificates;
}

// A node without credentials or fabric needs no guard: its lenders see its end themselves.
bool is_guarded(const NodeConfig& node) {
  return !node.secret.empty() || !node.certificates.empty() || !node.fabric.empty();
}

// The tier to leave at exit, if the process ends without vmem_shutdown.
std::mutex live_mutex;
Remote* live = nullptr;  // protected by live_mutex

// Runs after the program's own destructors, which may still use pages: the loader ends a library
// after its dependents. Threads still running find their pages lost, and end with the process.
__attribute__((destructor)) void leave_at_exit() {
  if (process::forked()) return;  // the tier is the parent's
  const std::lock_guard lock(live_mutex);
  if (live != nullptr) live->leave();
}

std::string label(const cluster::NodeRecord& record, const std::string& name) {
  const auto found = record.labels.find(name);
  return found == record.labels.end() ? "" : found->second;
}

// The nodes of the cluster that lend.
std::vector<rdma::NamedLender> lenders_of(const ClusterView& view) {
  std::vector<rdma::NamedLender> lenders;
  for (const ClusterNode& node : view.nodes) {
    if (node.record.stored_pages() == 0) continue;
    lenders.push_back({.name = static_cast<std::uint64_t>(node.id),
                       .addresses = node.record.addresses,
                       .domain = {.rack = label(node.record, "rack"), .host = label(node.record, "host")},
                       .node = {NodeId{node.record.transport}, node.record.incarnation},
                       .drains = node.drain.has_value(),
                       .drain_rate = node.drain ? node.drain->rate : 0});
  }
  return lenders;
}

// Or the cluster's name is mistyped: any name is one of a cluster that begins with its first node.
void warn_without_daemons(const ClusterView& view, const RegistryAccess& registry) {
  const auto is_daemon = [](const ClusterNode& node) { return node.record.kind == "daemon"; };
  if (std::ranges::any_of(view.nodes, is_daemon)) return;
  VMEM_LOG_WARN(
      "cluster '{}' has no daemons yet: pages find no room on other nodes until `vmem daemon --cluster ...` runs on "
      "one; "
      "is that the cluster's name?",
      registry.cluster());
}

// A member listens, so that nodes that open its regions can fetch their pages.
Result<std::string> listen_address(const Options& options) {
  if (options.cluster.empty()) return "";
  if (!options.advertise.empty()) return resolve_address(options.advertise);
  if (options.secret.empty() && options.certificates.empty()) return "127.0.0.1:0";
  VMEM_ASSIGN(const cluster::EtcdAddress registry, cluster::parse_etcd_address(options.cluster));
  return address_towards(registry.endpoints.front());
}

}  // namespace

Remote::~Remote() {
  const std::lock_guard lock(live_mutex);
  if (live == this) live = nullptr;
}

Result<std::unique_ptr<Remote>> Remote::start(const Options& options, std::function<void()> on_ready,
                                              const gpu::DriverRef& driver) {
  auto listed = cluster::parse_peers(fmt::format("{}", fmt::join(options.remote, ",")));
  if (!listed) return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--remote: {}", listed.error().message));
  rdma::RemoteTier::Config config;
  for (cluster::Peer& peer : *listed) {
    auto resolved = resolve_address(peer.address);
    if (!resolved)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--remote {}: {}", peer.address, resolved.error().message));
    peer.address = *std::move(resolved);
    config.peers.push_back(peer.address);
  }
  const NodeIdentity self = make_identity(0);
  VMEM_ASSIGN(cluster::StaticPeers peers, cluster::StaticPeers::create(self, *listed));
  std::unique_ptr<Remote> remote(new Remote(std::move(peers)));
  VMEM_ASSIGN(const std::string listen, listen_address(options));
  NodeConfig own{.self = self,
                 .listen = listen,
                 .secret = options.secret,
                 .certificates = options.certificates,
                 .fabric = options.fabric,
                 .channels = channel_count(options.remote_channels)};
  if (!options.cluster.empty()) own.join(options.base, options.space_bytes);
  if (driver && !own.fabric.empty()) own.gpu = receive_from_gpus(driver, fabric_settings(own.fabric));
  config.channels = own.channels;
  config.credentials = credentials_of(own);
  // Leaves time for several attempts within the wait for a page.
  config.request_us = std::clamp(options.remote_wait_us / 4, kLeastRequestUs, kRequestUs);
  rdma::NodeSetup setup{.self = self, .make_transport = {}, .clock = &remote->clock_, .times = {}};
  setup.times.connect_us = setup.times.request_us = config.request_us;
  // Tells the guards of this node before it connects, but after its files and devices proved
  // usable, since the guards use them too.
  setup.make_transport = [&own, lenders = config.peers, clock = &remote->clock_](rdma::Receiver& receiver) {
    auto transport = make_transport(own, *clock, receiver);
    if (transport && is_guarded(own))
      announce_to_guard({.node = own.self,
                         .secret = own.secret,
                         .certificates = own.certificates,
                         .fabric = own.fabric,
                         .lenders = lenders});
    return transport;
  };
  config.replicas = options.replicas;
  config.last_resort = options.nvme.empty();
  config.by_need = true;
  config.borrow_bytes = options.borrow_bytes.value_or(config.borrow_bytes);
  if (options.remote_encrypt) config.protection = rdma::PageAead::Mode::encrypt;
  config.patience_us = options.remote_wait_us;
  config.workers = std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
  config.heard = [members = &remote->peers_](const std::string& address, NodeIdentity node) {
    return members->heard(address, node);
  };
  config.missed = [members = &remote->peers_](NodeId node) { members->missed(node); };
  const std::function<void()> wake = on_ready;
  config.on_ready = std::move(on_ready);
  VMEM_ASSIGN(remote->node_, rdma::Node::create(std::move(setup)));
  VMEM_ASSIGN(remote->tier_, rdma::RemoteTier::create(std::move(config), *remote->node_));
  if (!options.cluster.empty()) {
    VMEM_ASSIGN(remote->tenant_, tenant_of(own));
    VMEM_TRY(remote->start_joint(options, wake));
  }
  remote->node_->start();
  VMEM_TRY(options.cluster.empty() ? remote->tier_->wait_for_peers(kStartUs) : remote->join(options, self));
  const std::lock_guard lock(live_mutex);
  live = remote.get();
  return remote;
}

// While this node is no member yet, it must not act as one.
Status Remote::start_joint(const Options& options, const std::function<void()>& on_ready) {
  JointRegions::Config config;
  config.directory.registry = opener_of({options.cluster, options.certificates});
  config.directory.tenant = tenant_;
  config.directory.lenders = NodePaths::Lenders::the_remote_tier;
  config.directory.fence = &fence_;
  config.directory.range_freed = [this](std::uint32_t first, std::uint32_t count) {
    const std::lock_guard lock(user_mutex_);
    if (user_ != nullptr) user_->range_freed(first, count);
  };
  config.tier.times.patience_us = options.remote_wait_us;
  config.tier.workers = std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u);
  config.tier.on_ready = on_ready;
  VMEM_ASSIGN(joint_, JointRegions::create(*node_, std::move(config)));
  return {};
}

// The tier borrows of the cluster's daemons.
Status Remote::join(const Options& options, const NodeIdentity& self) {
  Member::Config config{.registry = {options.cluster, options.certificates},
                        .parameters = cluster_parameters(options.base, options.space_bytes),
                        .record = this_host("program", self.incarnation),
                        .lease_s = options.node_lease_s,
                        .fence = fence_,
                        .seen = {},
                        .expelled = {}};
  config.expelled = [this](const std::vector<cluster::Slice>& held) {
    joint_->directory().expelled();
    const std::lock_guard lock(user_mutex_);
    if (user_ != nullptr) return user_->slices_lost(held);
    lost_.insert(lost_.end(), held.begin(), held.end());
  };
  config.record.transport = static_cast<std::uint64_t>(self.id);
  config.record.addresses = {node_->transport().address()};
  config.seen = [this, registry = config.registry, first = true](const ClusterView& view, bool changed) mutable {
    if (std::exchange(first, false)) warn_without_daemons(view, registry);
    joint_->directory().see(view);
    if (!found_) found_ = lenders_on_host(view, this_boot());
    if (changed) tier_->follow(lenders_of(view));
  };
  VMEM_ASSIGN(member_, Member::join(std::move(config), kStartUs));
  tier_->wait_for_lenders(kStartUs);
  return {};
}

// Its regions first: other nodes may fetch from here what only this one has.
void Remote::leave() {
  if (joint_) (void)joint_->directory().leave(kLeaveUs);
  tier_->leave();
  if (member_) member_->leave();
}

void Remote::tell(AddressUser* user) {
  const std::lock_guard lock(user_mutex_);
  user_ = user;
  if (user_ != nullptr && !lost_.empty()) user_->slices_lost(std::exchange(lost_, {}));
}

void Remote::add_to(vmem_statistics& out) const {
  const tiers::TierUsage usage = tier_->usage();
  const rdma::RemoteStatistics statistics = tier_->statistics();
  const auto places = tier_->obtainable_places();
  out.remote_budget_bytes = std::accumulate(places.begin(), places.end(), std::uint64_t{0});
  out.remote_used_bytes = usage.used_bytes;
  out.remote_stored_bytes = statistics.stored_bytes;
  out.remote_fetched_bytes = statistics.fetched_bytes;
  out.remote_copies_lost = statistics.copies_lost;
  out.remote_single_copies = statistics.single_copies;
  out.remote_reconnects = statistics.reconnects;
  out.remote_checksum_failures = statistics.checksum_failures;
}

}  // namespace vmem::runtime
