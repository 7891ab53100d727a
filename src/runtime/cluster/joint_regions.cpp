#include "runtime/cluster/joint_regions.hpp"

#include <utility>

namespace vmem::runtime {

bool JointRegions::Pages::may_read(pagetable::Serial serial, const std::string& tenant) const {
  const sharing::PageHolder* const pages = holder.load(std::memory_order_acquire);
  return pages != nullptr && pages->may_read(serial, tenant);
}

void JointRegions::Pages::lend(const sharing::SharedPage& page, Lent lent) {
  if (sharing::PageHolder* const pages = holder.load(std::memory_order_acquire))
    return pages->lend(page, std::move(lent));
  lent(std::unexpected(rdma::wire::Answer::unknown));
}

// The server's removal waits for a turn of the node's thread, which then has left the holder.
void JointRegions::stop_serving() {
  pages_.holder.store(nullptr, std::memory_order_release);
  tier_->hurry_all();
  server_.reset();
}

std::shared_ptr<tiers::PageSource> JointRegions::open(sharing::SharedRegion region) {
  auto source = tier_->open(std::move(region));
  return copies_ == nullptr ? std::move(source) : copies_->keep(std::move(source));
}

Result<std::unique_ptr<JointRegions>> JointRegions::create(rdma::Node& node, Config config) {
  std::unique_ptr<JointRegions> regions(new JointRegions);
  VMEM_ASSIGN(regions->parcels_, rdma::Parcels::create(node));
  VMEM_ASSIGN(regions->directory_, DirectoryService::create(node, *regions->parcels_, std::move(config.directory)));
  regions->tier_ =
      std::make_unique<sharing::SharedTier>(node, *regions->directory_, regions->pages_, std::move(config.tier));
  regions->server_ = std::make_unique<sharing::PageServer>(node, regions->pages_);
  return regions;
}

}  // namespace vmem::runtime
