// A node without a program (`vmem daemon`): lends memory, HBM and disk space to other nodes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "rdma/lending/memory_service/memory_service.hpp"
#include "rdma/node/node.hpp"
#include "runtime/cluster/host_watch.hpp"
#include "runtime/cluster/joint_regions.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/cluster/page_shelf.hpp"
#include "runtime/remote/guard.hpp"
#include "runtime/remote/lent_hbm.hpp"
#include "runtime/remote/lent_memory.hpp"
#include "runtime/remote/nodes.hpp"
#include "tiers/disk/disk_options.hpp"
#include "tiers/disk/disk_tier.hpp"

namespace vmem::runtime {

// Host memory of a daemon that lends disks or HBM: two of the largest pages, on their way there or
// back.
inline constexpr std::uint64_t kDaemonStagingBytes = std::uint64_t{512} << 20;

struct DaemonOptions {
  std::string listen = "127.0.0.1:7000";
  std::uint64_t lend_bytes = 0;
  std::uint64_t copies_bytes = 0;  // with cluster: for copies of published regions
  std::vector<StoreDirectory> nvme;
  std::optional<HbmLoan> hbm;
  std::string driver = "auto";                // with hbm, as the option driver
  std::string secret;                         // a file; alternative to `certificates`
  std::string certificates;                   // a folder; neither: only nodes on this machine
  std::string fabric;                         // UCX devices; "": TLS, or Unix sockets
  std::uint32_t id = 0;                       // 0: the daemon chooses one
  std::optional<std::uint64_t> client_bytes;  // maximum for one node
  std::uint64_t grace_us = 60'000'000;
  std::optional<std::uint32_t> channels;    // connections that a node may use
  std::string cluster;                      // its registry, as in the option cluster; "": none
  std::uint64_t base = 0, space_bytes = 0;  // of the programs of the cluster
  std::uint32_t node_lease_s = 90;          // with cluster: of its membership
  std::vector<std::string> advertise;       // with cluster: where others reach it; none: `listen`
  std::map<std::string, std::string> labels;
};

class Daemon {
 public:
  // Errors: INVALID_OPTION for resources or addresses that cannot be used; those of the transport.
  static Result<std::unique_ptr<Daemon>> start(const DaemonOptions& options);
  ~Daemon();

  const std::string& address() const { return node_->transport().address(); }
  NodeId member_id() const { return member_ ? member_->id() : NodeId{}; }  // 0: of no cluster
  // Whether address() is a loopback address, which other machines cannot reach.
  bool on_loopback() const;
  std::uint64_t id() const { return id_; }
  std::uint64_t memory_bytes() const { return lent_bytes_; }
  std::uint64_t disk_bytes() const { return disk_ ? disk_->usage().budget_bytes : 0; }
  std::uint64_t hbm_bytes() const;
  // Which GPU, and the way there; "": no HBM is lent.
  std::string hbm_path() const { return hbm_ ? hbm_->describe() : ""; }
  cluster::MappedHbm mapped_hbm() const { return hbm_ ? hbm_->mapped_part() : cluster::MappedHbm{}; }
  peer::Lender::Usage mapped_hbm_usage() const { return hbm_ ? hbm_->mapped() : peer::Lender::Usage{}; }
  std::uint64_t copies_bytes() const { return copies_bytes_; }  // at most, of published regions
  PageShelf::Usage copies() const { return shelf_ ? shelf_->usage() : PageShelf::Usage{}; }
  rdma::ServiceStatistics statistics() const { return service_->statistics(); }
  cluster::Holdings holdings() const;
  // It was asked to end when it is drained, and it is.
  bool is_over() const { return over_.load(std::memory_order_acquire); }

 private:
  Daemon() = default;
  Status open(const DaemonOptions& options);
  Status reserve(const DaemonOptions& options);
  Status open_tiers(const DaemonOptions& options);
  Status open_hbm(const DaemonOptions& options);
  void watch_programs();
  Status start_joint(const DaemonOptions& options, const NodeConfig& node);
  Status join(const DaemonOptions& options, const NodeIdentity& self, std::string trust);
  void see(const ClusterView& view);
  cluster::Holdings look();

  SteadyClock clock_;
  std::uint64_t id_ = 0, lent_bytes_ = 0, staging_bytes_ = 0, copies_bytes_ = 0;
  std::unique_ptr<LentMemory> memory_;  // lent, and staging; null: only copies are kept
  std::unique_ptr<tiers::DiskTier> disk_;
  std::unique_ptr<LentHbm> hbm_;
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::MemoryService> service_;
  // Of a cluster, or null: in the order of use, a later member calls an earlier one.
  Fence fence_{clock_};
  std::atomic<bool> over_ = false;
  // Only for the member's thread.
  std::optional<cluster::DrainOrder> drain_;
  std::optional<cluster::HbmLimit> hbm_limit_;
  std::uint64_t drains_since_us_ = 0;
  std::unique_ptr<PageShelf> shelf_;
  std::unique_ptr<JointRegions> joint_;
  std::unique_ptr<HostWatch> host_watch_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<Guard> guard_;  // of this host's programs; null if it could not start
};

}  // namespace vmem::runtime
