// Pages of published regions that this node has opened: a tier that loads them from the nodes that
// have them, into slots of pinned host memory, in place. It stores nothing.
//
// SharedTier → SharedJobs (the node's thread) → Calls, PageFinder.
// Threads: the mover's, for Tier; any, for open and statistics; the node's, for Service.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rdma/node/node.hpp"
#include "sharing/page_finder.hpp"
#include "sharing/region_key.hpp"
#include "sharing/shared_jobs.hpp"
#include "tiers/async/inbox.hpp"
#include "tiers/page_source.hpp"
#include "tiers/slot_runs.hpp"
#include "tiers/tier.hpp"

namespace vmem::sharing {

// A published region, as one opens it.
struct SharedRegion {
  std::string name;
  pagetable::Serial serial{};
  std::uint64_t bytes = 0;
  std::uint64_t page_bytes = 0;  // a power of two of granules
  std::uint32_t first_granule = 0;
  pagetable::Serial earlier{};  // the version before. 0: none
  bool own = false;             // published by this node: it loads only what it has lost
  std::shared_ptr<const RegionKey> key;
};

class SharedTier final : public tiers::Tier, public tiers::QueueingTier, public rdma::Service {
 public:
  struct Config {
    SharedTimes times;
    std::uint32_t workers = 1;  // 0: pages are checked on the node's thread
    std::function<void()> on_ready;
  };
  // Adds itself to the node. `holder`: what this node has. All outlive this.
  SharedTier(rdma::Node& node, PageFinder& finder, PageHolder& holder, Config config);
  ~SharedTier() override;

  // Any thread. The source must not outlive the tier.
  std::shared_ptr<tiers::PageSource> open(SharedRegion region);
  SharedCounters statistics() const;
  // From now on no page waits for longer than a fetch may take.
  void hurry_all() {
    inbox_.post([this] { jobs_.hurry_all(); });
  }

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {}; }  // nothing of its own
  void expect(std::uint64_t, std::uint64_t) override {}
  // Slots are the sources': see open.
  Result<tiers::SlotGrant> allocate(std::uint64_t) override { return tiers::SlotGrant{}; }
  void release(tiers::SlotId) override {}
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  // Waits for silent nodes for at most one request_us.
  tiers::Finished finish() noexcept override;
  std::string where(tiers::SlotId slot) const override;
  // That of the region: its pages come from the same nodes.
  std::uint32_t queue(tiers::SlotId slot) const override;
  void hurry(std::uint64_t transfer) override;

  std::span<const rdma::wire::Kind> kinds() const override { return {}; }
  bool step() override;
  void quiesce() override { jobs_.hurry_all(); }
  bool quiesced() const override { return jobs_.empty(); }

 private:
  class Source;
  using RegionRef = std::shared_ptr<const SharedRegion>;

  rdma::Node& node_;
  const Config config_;
  const tiers::TierInfo info_;
  tiers::SlotRuns<RegionRef> slots_;
  tiers::TransferLedger ledger_;
  tiers::Inbox inbox_{[this] { node_.wake(); }};
  std::unique_ptr<tiers::Workers> workers_;
  SharedJobs jobs_;  // only for the node's thread, but for counters()
};

}  // namespace vmem::sharing
