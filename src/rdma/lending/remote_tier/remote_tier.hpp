// Pages in the memory, HBM and disks of other nodes that run a MemoryService. Pages move
// between these and slots of pinned host memory, in place: only encryption copies them. Pages are
// authenticated, or encrypted, with a key that only this process has (PageAead), and checked when
// they return: lenders need not be trusted. To detect accidents, a lender gets the seal, a checksum
// of what it stores.
//
// A slot has one or two copies (`replicas`) on different nodes. Every request has a deadline; after
// it, the connection is closed by force and made again. A lender's copies are dropped only on proof
// of their loss: its process was seen to end (DeadNodes), another incarnation or another node
// answers at its address, or it does not know the lease. A page without another copy is then lost.
// Silence and refused connections prove nothing: a load without an answer for `patience_us` fails
// with TIMEOUT, and the page is kept. A lost copy is re-created by the page's next store, or in the
// background from another one. In the same way copies leave lenders that drain.
//
// The node's thread does all waiting for the network; workers make and check seals. The mover's
// calls wait for neither. These are the parts. A part calls only parts below it, and none while it
// holds its own lock:
//   PageJobs       stores and loads of pages
//   PageRepairs    copies between lenders
//   LeaseSizing    how large the leases are
//   Lenders        links and leases
//   MediaRates     which media are faster
//   StoredPages    what the slots hold
//   CopyPlacer     where copies lie (any thread, locked)
//   TransferLedger what the mover waits for (any thread, locked)
// The mover's calls post tasks to the node's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/lending/remote_tier/first_contacts.hpp"
#include "rdma/lending/remote_tier/lease_returns.hpp"
#include "rdma/lending/remote_tier/lease_sizing.hpp"
#include "rdma/lending/remote_tier/lenders.hpp"
#include "rdma/lending/remote_tier/media_rates.hpp"
#include "rdma/lending/remote_tier/page_jobs.hpp"
#include "rdma/lending/remote_tier/page_repairs.hpp"
#include "rdma/node/node.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class RemoteTier final : public tiers::Tier,
                         public tiers::DegradableTier,
                         public tiers::QueueingTier,
                         public tiers::GrowingTier,
                         public Service {
 public:
  using Config = RemoteConfig;
  using Credentials = RemoteConfig::Credentials;

  // Call before the node starts; the node outlives the tier. Errors: INVALID_OPTION, if pages
  // cannot be protected.
  static Result<std::unique_ptr<RemoteTier>> create(Config config, Node& node);
  ~RemoteTier() override;

  // Waits until each peer was tried once, for at most most_us. With two copies of each page one
  // peer may be off. Errors: INVALID_OPTION for the first other peer that was not reached, with
  // the reason and the remedy.
  Status wait_for_peers(std::uint64_t most_us) { return contacts_.wait(most_us, config_.replicas - 1); }
  RemoteStatistics statistics() const { return counters_.read(); }
  // "127.0.0.1:7000 by tcp/lo, 8 GiB"
  std::string describe() const;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return placer_.usage(); }
  // Each node's media; with two replicas, the budget as one place.
  std::vector<std::uint64_t> places() const override { return placer_.places(); }
  void expect(std::uint64_t, std::uint64_t) override {}  // need() says it for all sizes of pages
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override { return placer_.allocate(page_bytes); }
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  // Waits for a silent node for at most one request_us.
  tiers::Finished finish() noexcept override;
  std::string where(tiers::SlotId slot) const override;
  bool degraded(tiers::SlotId slot) const override { return placer_.degraded(slot); }
  // That of the node with the first copy.
  std::uint32_t queue(tiers::SlotId slot) const override { return placer_.copies(slot)[0].node; }
  void hurry(std::uint64_t transfer) override;

  std::uint64_t need(std::uint64_t bytes) override;
  bool was_answered(std::uint64_t ticket) const override { return !config_.by_need || need_.was_answered(ticket); }
  std::uint64_t changes() const override { return placer_.revision(); }
  std::vector<std::uint64_t> obtainable_places() const override { return placer_.obtainable_places(); }
  std::string shortage() const override { return need_.shortage(); }

  // Any thread. The nodes that lend are these now, beside config.peers: those that are named no
  // more are over for certain, and so are the copies that they had. Pages leave those that drain,
  // which then get their leases back and are not used.
  void follow(std::vector<NamedLender> lenders);
  // Waits until each node that lends was tried once, for at most most_us. A warning names each that
  // cannot be used.
  void wait_for_lenders(std::uint64_t most_us);

  // Any thread. Returns all leases, as the destructor does; no store or load may follow. Waits for
  // the lenders for at most 0.3 s.
  void leave();

  std::span<const wire::Kind> kinds() const override { return {}; }
  void notice(const Peer& from, const wire::Parsed& message) override;
  bool step() override;
  void quiesce() override { network_->lenders.close_all(); }
  bool quiesced() const override { return network_->lenders.all_closed(); }

 private:
  // Of the node's thread.
  struct Network {
    Network(const RemoteConfig& config, RemoteTier& tier);
    StoredPages pages;
    Lenders lenders;
    LeaseSizing sizing;
    MediaRates rates;
    PageJobs jobs;
    PageRepairs repairs;
  };

  RemoteTier(Config config, Node& node);
  Status open();

  const Config config_;
  Node& node_;
  const tiers::TierInfo info_;

  // Any thread; each has its own lock.
  CopyPlacer placer_;
  FirstContacts contacts_;
  RemoteCounters counters_;
  tiers::TransferLedger ledger_;
  tiers::Inbox inbox_{[this] { node_.wake(); }};
  LeaseReturns returns_;
  LeaseSizing::Need need_;
  std::unique_ptr<PageProtection> protection_;

  // Constant after open().
  std::unique_ptr<tiers::Workers> workers_;

  // Only for the node's thread.
  std::optional<Network> network_;
};

}  // namespace vmem::rdma
