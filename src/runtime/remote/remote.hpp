// The remote nodes that keep this program's pages, and the tier that sends pages to them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.hpp"
#include "cluster/static_peers.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
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
  void add_to(vmem_statistics& out) const;

 private:
  explicit Remote(cluster::StaticPeers peers) : peers_(std::move(peers)) {}

  static Status follow_cluster(const Options& options, Remote& remote, const NodeIdentity& self);

  SteadyClock clock_;
  cluster::StaticPeers peers_;  // used by the node's thread
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<rdma::RemoteTier> tier_;  // ends before the node
  std::unique_ptr<Member> member_;          // of a cluster; ends before the tier, which it tells
};

}  // namespace vmem::runtime
