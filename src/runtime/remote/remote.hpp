// The remote nodes that keep this program's pages, and the tier that sends pages to them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.hpp"
#include "cluster/static_peers.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
#include "runtime/cluster/joint_regions.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/options/options.hpp"

namespace vmem::runtime {

class Remote {
 public:
  // Returns when all nodes of the option were reached. Errors: INVALID_OPTION, with the node that
  // was not reached and the reason; those of UCX.
  static Result<std::unique_ptr<Remote>> start(const Options& options, std::function<void()> on_ready);
  ~Remote();
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  rdma::RemoteTier& tier() { return *tier_; }
  // With the option cluster; otherwise null.
  Member* member() { return member_.get(); }
  JointRegions* joint() { return joint_.get(); }
  const std::string& tenant() const { return tenant_; }
  // Whom to tell of addresses that no node uses any more; the node's thread calls it.
  void on_range_freed(std::function<void(std::uint32_t first, std::uint32_t count)> freed);
  void add_to(vmem_statistics& out) const;

 private:
  explicit Remote(cluster::StaticPeers peers) : peers_(std::move(peers)) {}

  Status start_joint(const Options& options, const std::function<void()>& on_ready);
  Status join(const Options& options, const NodeIdentity& self);

  SteadyClock clock_;
  cluster::StaticPeers peers_;  // used by the node's thread
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::RemoteTier> tier_;  // ends before the node
  std::string tenant_;                      // of this node, as others see it
  std::mutex freed_mutex_;
  std::function<void(std::uint32_t, std::uint32_t)> range_freed_;  // protected by freed_mutex_
  std::atomic<const Member*> membership_ = nullptr;                // member_, for other threads
  // With a cluster. The member ends before those that it tells, and all before the node.
  std::unique_ptr<JointRegions> joint_;
  std::unique_ptr<Member> member_;
};

}  // namespace vmem::runtime
