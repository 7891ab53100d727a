// The nodes that this program's pages go to: who they are, and the tier that sends them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.hpp"
#include "base/options.hpp"
#include "cluster/static_peers.hpp"
#include "rdma/remote_tier.hpp"

namespace vmem::runtime {

class Remote {
 public:
  // When all nodes of the option were reached. Errors: INVALID_OPTION, naming the node that was not, and why; those of UCX.
  static Result<std::unique_ptr<Remote>> start(const Options& options, std::function<void()> on_ready);
  ~Remote();
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;

  rdma::RemoteTier& tier() { return *tier_; }
  void add_to(vmem_statistics& out) const;

 private:
  explicit Remote(cluster::StaticPeers peers) : peers_(std::move(peers)) {}

  SteadyClock clock_;
  cluster::StaticPeers peers_;  // the tier's thread's
  std::unique_ptr<rdma::RemoteTier> tier_;
};

}  // namespace vmem::runtime
