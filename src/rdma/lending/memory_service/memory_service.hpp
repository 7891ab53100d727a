// The work of `vmem daemon`: lends memory, and room on disks, to pages of other nodes.
//
// A connected node that asks gets a lease, a range of its own, and chooses the offsets of its pages
// in it. A page arrives with its seal, and is held once it was verified against it. The borrower
// verifies each page that it fetches. After a mismatch it fetches the page again, and this service
// verifies its own copy before it sends it. Pages to and from a disk pass through staging memory.
//
// A disconnected node keeps its lease for a grace period. The lease ends earlier if the node's
// process has ended (DeadNodes), or if a new incarnation of the node asks for one. The memory of a
// lease is wiped before it is lent again.
//
// The parts, each of which calls only those below it:
//   PageTraffic   pages that come and go
//   ClientBook    who is connected
//   LeaseBook     who has which room
//   PageStore     the pages in leases
//   ReplyBox      replies, sent and remembered
//
// Threads: step() and claim() belong to the thread that progresses the transport, and so do all
// parts; any thread may call statistics() and poke().
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/memory_service/client_book.hpp"
#include "rdma/lending/memory_service/page_traffic.hpp"
#include "rdma/transport/event_batch.hpp"

namespace vmem::rdma {

class MemoryService final : public Receiver {
 public:
  using Config = ServiceConfig;
  explicit MemoryService(Config config) : config_(config) {}
  ~MemoryService() override { stop(); }

  // Call first, and once; the transport must outlive stop().
  Status start(Transport& transport);
  // Does what is possible now. False: there was nothing to do.
  bool step();
  // Closes all connections. Call on the progressing thread, or after that thread has ended.
  void stop();
  // Wakes the thread that progresses the transport.
  void poke() noexcept;
  ServiceStatistics statistics() const;

  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) override;

 private:
  struct Parts {
    Parts(const ServiceConfig& config, Transport& transport, tiers::Workers& workers);
    ServiceStatistics statistics;
    DeadNodes dead;
    ReplyBox replies;
    PageStore store;
    LeaseBook leases;
    ClientBook clients;
    PageTraffic traffic;
  };

  void handle(PeerId peer, const Connected& connected);
  void handle(PeerId peer, const Message& message);
  void handle(PeerId, const ReceiveFailed& failed) { parts_->traffic.receive_failed(failed.token); }
  void handle(PeerId, const Sent& sent) { parts_->traffic.sent(sent.id); }
  void handle(PeerId, const SendFailed& failed) { parts_->traffic.send_failed(failed.id); }
  void handle(PeerId peer, const Gone& gone) { parts_->clients.gone(peer, gone); }

  void on_ask(PeerId peer, const wire::Header& header, ConstBytes body);
  wire::Lent answer_to(const wire::Ask& ask, PeerId peer);
  void on_end(PeerId peer, const wire::Header& header, ConstBytes body);
  void on_release(PeerId peer, const wire::Header& header, ConstBytes body);

  bool waits(ClientBook::Client& asking);
  bool find_dead();
  void end_dead(NodeIdentity node);
  void publish();

  const Config config_;
  Transport* transport_ = nullptr;  // null: not started, or stopped
  EventBatch events_;
  bool stopping_ = false;  // new connections are closed
  std::unique_ptr<Slab> slab_;
  LogLimit died_;
  std::uint64_t look_us_ = 0;               // next check for dead nodes and failed disks
  tiers::Inbox inbox_{[this] { poke(); }};  // ends of the workers' work
  std::unique_ptr<tiers::Workers> workers_;
  std::optional<Parts> parts_;  // from start()

  mutable std::mutex mutex_;
  ServiceStatistics published_;  // protected by mutex_
};

}  // namespace vmem::rdma
