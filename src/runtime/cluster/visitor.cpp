#include "runtime/cluster/visitor.hpp"

#include <fmt/format.h>

#include <utility>

#include "runtime/cluster/registry_client.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::runtime {
namespace {

// Who is alone erases what it has removed, which takes some readings of the registry.
constexpr std::uint64_t kLeaveUs = 5'000'000;
constexpr std::uint32_t kLeaseS = 15;  // if it is killed

// Those of the members: a visitor has no address space of its own that could differ.
Result<cluster::ClusterParameters> parameters_of(const RegistryAccess& access, std::uint64_t most_us) {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(access, most_us));
  VMEM_ASSIGN(const auto records, registry->read(std::string(cluster::kParametersKey)));
  if (records.empty() || records.front().key != cluster::kParametersKey)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("no node has ever joined the cluster {}; is its name right?", access.address));
  return cluster::parse_parameters(records.front().value);
}

}  // namespace

Result<std::unique_ptr<Visitor>> Visitor::join(const Config& config, std::uint64_t most_us) {
  std::unique_ptr<Visitor> visitor(new Visitor);
  VMEM_TRY(visitor->start(config, most_us));
  return visitor;
}

Status Visitor::start(const Config& config, std::uint64_t most_us) {
  VMEM_ASSIGN(cluster::ClusterParameters parameters, parameters_of(config.registry, most_us));
  const NodeIdentity self = make_identity(0);
  NodeConfig own{.self = self,
                 .listen = {},  // homes answer over the connections that it makes
                 .secret = config.secret,
                 .certificates = config.certificates,
                 .fabric = config.fabric};
  own.join(parameters.base, parameters.space_bytes);
  rdma::NodeSetup setup{.self = self, .make_transport = {}, .clock = &clock_, .times = {}};
  setup.make_transport = [&](rdma::Receiver& receiver) { return make_transport(own, clock_, receiver); };
  VMEM_ASSIGN(node_, rdma::Node::create(std::move(setup)));
  VMEM_ASSIGN(parcels_, rdma::Parcels::create(*node_));
  DirectoryService::Config directory{.registry = opener_of(config.registry)};
  VMEM_ASSIGN(directory.tenant, tenant_of(own));
  directory.fence = &fence_;
  directory.takes_over = false;  // for a moment it would be home of regions that concern it not
  VMEM_ASSIGN(directory_, DirectoryService::create(*node_, *parcels_, std::move(directory)));
  node_->start();
  Member::Config member{.registry = config.registry,
                        .parameters = std::move(parameters),
                        .record = this_host("visitor", self.incarnation),
                        .lease_s = kLeaseS,
                        .fence = fence_,
                        .seen = {},
                        .expelled = {}};
  member.record.transport = static_cast<std::uint64_t>(self.id);
  member.seen = [this](const ClusterView& view, bool) { directory_->see(view); };
  member.expelled = [this](const std::vector<cluster::Slice>&) { directory_->expelled(); };
  VMEM_ASSIGN(member_, Member::join(std::move(member), most_us));
  return {};
}

Visitor::~Visitor() {
  if (member_) (void)directory_->leave(kLeaveUs);
  member_.reset();
}

}  // namespace vmem::runtime
