// A program's part in the published regions of its cluster, as far as its node runs it: the
// directory, the tier that loads pages of other nodes' regions, and the server that sends pages of
// this node to others.
//
// Thread: any.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runtime/cluster/directory_service.hpp"
#include "sharing/disk_copies.hpp"
#include "sharing/page_server.hpp"
#include "sharing/shared_tier.hpp"

namespace vmem::runtime {

class JointRegions {
 public:
  struct Config {
    DirectoryService::Config directory;
    sharing::SharedTier::Config tier;
  };
  // REQUIRES: the node has not started, and outlives this. Errors: those of open_registry, and of
  // Transport::register_slab.
  static Result<std::unique_ptr<JointRegions>> create(rdma::Node& node, Config config);

  DirectoryService& directory() { return *directory_; }
  sharing::SharedTier& tier() { return *tier_; }
  // Where pages of regions that are opened from now on get copies; null: nowhere.
  void keep_copies(sharing::DiskCopies* copies) { copies_ = copies; }
  const sharing::DiskCopies* copies() const { return copies_; }
  // For a reader. The source must not outlive the tier, nor the copies.
  std::shared_ptr<tiers::PageSource> open(sharing::SharedRegion region);
  // What this node has for others, from now on. Outlives stop_serving().
  void serve(sharing::PageHolder& holder) { pages_.holder.store(&holder, std::memory_order_release); }
  // Returns when no page is lent to the server any more, and the holder is not called again. Pages
  // that are being compared are given back soon.
  void stop_serving();
  // Not after stop_serving().
  sharing::PageServer::Statistics served() const { return server_->statistics(); }

 private:
  // Nothing, until there is a mover.
  struct Pages final : sharing::PageHolder {
    std::atomic<sharing::PageHolder*> holder = nullptr;
    bool may_read(pagetable::Serial serial, const std::string& tenant) const override;
    void lend(const sharing::SharedPage& page, Lent lent) override;
  };

  JointRegions() = default;

  // In the order of use: a later member calls an earlier one.
  Pages pages_;
  std::unique_ptr<rdma::Parcels> parcels_;
  std::unique_ptr<DirectoryService> directory_;
  std::unique_ptr<sharing::SharedTier> tier_;
  std::unique_ptr<sharing::PageServer> server_;
  sharing::DiskCopies* copies_ = nullptr;
};

}  // namespace vmem::runtime
