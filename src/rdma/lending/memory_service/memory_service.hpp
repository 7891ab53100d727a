// The work of `vmem daemon`: lends memory, and room on disks and in HBM, to pages of other nodes.
//
// A connected node that asks gets a lease, a quota of each medium, and chooses the offsets of its
// pages in it. A page arrives with its seal, and is held once it was verified against it. The
// borrower verifies each page that it fetches. After a mismatch it fetches the page again, and this
// service verifies its own copy before it sends it. Pages to and from a disk or HBM pass through
// staging memory, but a page is fetched directly from HBM if the transport sends from a GPU's
// memory.
//
// A disconnected node keeps its lease for a grace period. The lease ends earlier if the node's
// process has ended (DeadNodes), or if a new incarnation of the node asks for one. The memory of a
// lease is wiped before it is lent again.
//
// The parts, each of which calls only those below it:
//   PageTraffic   pages that come and go
//   LeaseBook     who has which room
//   PageStore     the pages in leases
//   ReplyBox      replies, sent and remembered
//
// Threads: all parts belong to the node's thread; any thread may call statistics(), poke()
// and set_draining().
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/memory_service/page_traffic.hpp"
#include "rdma/node/node.hpp"

namespace vmem::rdma {

class MemoryService final : public Service {
 public:
  using Config = ServiceConfig;
  explicit MemoryService(Config config) : config_(config) {}
  ~MemoryService() override { stop(); }

  // Call once, before the node starts; the node outlives stop().
  Status start(Node& node);
  // Closes all connections that other nodes made. Any thread but the node's.
  void stop();
  // Wakes the node's thread.
  void poke() noexcept;
  ServiceStatistics statistics() const;
  // Whether nodes without a lease get one. Any thread.
  void set_draining(bool draining) noexcept { draining_.store(draining, std::memory_order_relaxed); }

  std::span<const wire::Kind> kinds() const override;
  Status admit(const Connected& connected) override;
  void gone(const Peer& peer, const Gone& gone) override;
  std::optional<Claim> claim(const Peer& from, const wire::Parsed& message, std::uint64_t payload_bytes) override;
  void landed(std::uint64_t token) override { parts_->traffic.landed(token); }
  void receive_failed(std::uint64_t token) override { parts_->traffic.receive_failed(token); }
  void request(const Peer& from, const wire::Parsed& message) override;
  void sent(SendId send) override { parts_->traffic.sent(send); }
  void send_failed(SendId send) override { parts_->traffic.send_failed(send); }
  bool step() override;
  void quiesce() override;
  bool quiesced() const override;

 private:
  struct Parts {
    Parts(const ServiceConfig& config, Node& node, tiers::Workers& workers, tiers::PinningTier* direct);
    ServiceStatistics statistics;
    DeadNodes dead;
    ReplyBox replies;
    PageStore store;
    LeaseBook leases;
    PageTraffic traffic;
  };

  tiers::PinningTier* direct_hbm(Transport& transport) const;
  void on_ask(const Peer& from, const wire::Header& header, ConstBytes body);
  // nullopt: this ask, or a later one, was answered before.
  std::optional<wire::Lent> answer_to(const wire::Ask& ask, const Peer& asking, std::uint64_t sequence);
  void on_end(const Peer& from, const wire::Header& header, ConstBytes body);
  void on_release(const Peer& from, const wire::Header& header, ConstBytes body);

  bool waits(PeerId asking);
  bool is_anothers(NodeId node, const std::string& tenant) const;
  bool find_dead();
  void end_dead(NodeIdentity node);
  void publish();

  const Config config_;
  Node* node_ = nullptr;   // null: not started, or stopped
  bool stopping_ = false;  // new connections are refused
  std::atomic<bool> draining_ = false;
  std::unique_ptr<Slab> slab_;
  LogLimit died_;
  std::map<PeerId, std::uint64_t> asked_us_;  // when a node was answered `again` first
  std::uint64_t look_us_ = 0;                 // next check for dead nodes and changed budgets
  tiers::Inbox inbox_{[this] { poke(); }};    // ends of the workers' work
  std::unique_ptr<tiers::Workers> workers_;
  std::optional<Parts> parts_;  // from start()

  mutable std::mutex mutex_;
  ServiceStatistics published_;  // protected by mutex_
};

}  // namespace vmem::rdma
