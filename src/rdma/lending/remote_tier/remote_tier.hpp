// Pages in the memory, and on the disks, of other nodes that run a MemoryService. Pages move
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
// with TIMEOUT, and the page is kept. A lost copy is re-created by the page's next store.
//
// One thread progresses the transport and does all waiting for the network; workers make and check
// seals. The mover's calls wait for none of them. These are the parts. A part calls only parts
// below it, and none while it holds its own lock:
//   PageJobs       stores and loads of pages
//   NodeLinks      connections and leases
//   Requests       what is in flight to the nodes
//   StoredPages    what the slots hold
//   CopyPlacer     where copies lie (any thread, locked)
//   TransferLedger what the mover waits for (any thread, locked)
// The mover's calls post tasks to the tier's thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/lending/remote_tier/first_contacts.hpp"
#include "rdma/lending/remote_tier/lease_returns.hpp"
#include "rdma/lending/remote_tier/node_links.hpp"
#include "rdma/lending/remote_tier/page_jobs.hpp"
#include "rdma/transport/event_batch.hpp"
#include "rdma/transport/progress_thread.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class RemoteTier final : public tiers::Tier, public tiers::DegradableTier, public Receiver {
 public:
  using Config = RemoteConfig;
  using Credentials = RemoteConfig::Credentials;

  // Errors: those of make_transport.
  static Result<std::unique_ptr<RemoteTier>> create(Config config);
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
  // Each node's memory and disk; with two replicas, the budget as one place.
  std::vector<std::uint64_t> places() const override { return placer_.places(); }
  void expect(std::uint64_t, std::uint64_t) override {}  // leases exist from the start
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override { return placer_.allocate(page_bytes); }
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  // Waits for a silent node for at most one request_us.
  tiers::Finished finish() noexcept override;
  std::string where(tiers::SlotId slot) const override;
  bool degraded(tiers::SlotId slot) const override { return placer_.degraded(slot); }

  // Any thread. Returns all leases, as the destructor does; no store or load may follow. Waits for
  // the lenders for at most 0.3 s.
  void leave();

  // On the tier's thread.
  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) override;
  bool step();
  Transport& transport() { return *transport_; }

 private:
  // Of the tier's thread. Made once the transport exists.
  struct Network {
    Network(const RemoteConfig& config, Transport& transport, RemoteTier& tier);
    Requests requests;
    StoredPages pages;
    NodeLinks links;
    PageJobs jobs;
  };

  explicit RemoteTier(Config config);
  Status open();
  void handle(Event& event);
  void handle(PeerId peer, const Connected& connected) { network_->links.connected(peer, connected); }
  void handle(PeerId peer, const Message& message);
  void handle(PeerId, const ReceiveFailed& failed) { network_->requests.receive_failed(failed.token); }
  void handle(PeerId, const Sent& sent) { network_->requests.sent(sent.id); }
  void handle(PeerId, const SendFailed& failed) { network_->requests.send_failed(failed.id); }
  void handle(PeerId peer, Gone& gone) { network_->links.gone(peer, gone); }
  void handle_ended_requests();

  const Config config_;
  const tiers::TierInfo info_;

  // Any thread; each has its own lock.
  CopyPlacer placer_;
  FirstContacts contacts_;
  RemoteCounters counters_;
  tiers::TransferLedger ledger_;
  tiers::Inbox inbox_{[this] { transport_->wake(); }};
  LeaseReturns returns_;
  std::unique_ptr<PageProtection> protection_;

  // Constant after open(). The transport outlives the jobs, which have registered memory with it.
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<tiers::Workers> workers_;

  // Only for the tier's thread.
  EventBatch events_;
  std::optional<Network> network_;

  std::unique_ptr<ProgressThread> thread_;
};

}  // namespace vmem::rdma
