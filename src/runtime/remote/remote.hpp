// The remote nodes that keep this program's pages, and the tier that sends pages to them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "cluster/static_peers.hpp"
#include "gpu/handles.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
#include "runtime/cluster/joint_regions.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/found_lenders.hpp"

namespace vmem::runtime {

// Who allocates in this node's part of the joint address space. Calls do not wait.
class AddressUser {
 public:
  virtual ~AddressUser() = default;
  // No node has these granules of a region that this node published any more. The node's thread.
  virtual void range_freed(std::uint32_t first, std::uint32_t count) = 0;
  // The cluster has removed this node: its slices may be others' now. The member's thread.
  virtual void slices_lost(const std::vector<cluster::Slice>& slices) = 0;
};

class Remote {
 public:
  // Returns when all nodes of the option were reached. `driver`: of this process's GPUs; null: it
  // uses none, and lenders stage pages in HBM for it. Errors: INVALID_OPTION, with the node that
  // was not reached and the reason; those of UCX.
  static Result<std::unique_ptr<Remote>> start(const Options& options, std::function<void()> on_ready,
                                               const gpu::DriverRef& driver = nullptr);
  ~Remote();
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  rdma::RemoteTier& tier() { return *tier_; }
  // With the option cluster; otherwise null.
  Member* member() { return member_.get(); }
  JointRegions* joint() { return joint_.get(); }
  const std::string& tenant() const { return tenant_; }
  // As the cluster was when this program joined it; constant.
  std::vector<FoundLender> lenders_on_this_host() const { return found_.value_or(std::vector<FoundLender>{}); }
  // Whom to tell of this node's addresses, from now on, and of slices that it has lost before;
  // null: nobody.
  void tell(AddressUser* user);
  void add_to(vmem_statistics& out) const;
  // When the process ends without vmem_shutdown: other nodes hear of it. Waits for at most some
  // seconds; nothing can be asked for after that.
  void leave();

 private:
  explicit Remote(cluster::StaticPeers peers) : peers_(std::move(peers)) {}

  Status start_joint(const Options& options, const std::function<void()>& on_ready);
  Status join(const Options& options, const NodeIdentity& self);

  SteadyClock clock_;
  cluster::StaticPeers peers_;  // used by the node's thread
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::RemoteTier> tier_;  // ends before the node
  std::string tenant_;                      // of this node, as others see it
  // Written by the member's thread before join() returns.
  std::optional<std::vector<FoundLender>> found_;
  Fence fence_{clock_};
  std::mutex user_mutex_;
  // Protected by user_mutex_.
  AddressUser* user_ = nullptr;
  std::vector<cluster::Slice> lost_;  // while there was no user
  // With a cluster. The member ends before those that it tells, and all before the node.
  std::unique_ptr<JointRegions> joint_;
  std::unique_ptr<Member> member_;
};

}  // namespace vmem::runtime
