// What `vmem daemon` does: lends memory, and room on disks, to other nodes' pages.
//
// A node that connects gets a lease, a range of its own for as long as it is there, and puts pages into it where it wants. A page is taken
// only with the seal it was sent with, and its bytes are checked against that before it is held. Who gets it back checks it, and if it came wrong, it is
// checked here before it is sent again. What goes to a disk passes through a few pages of memory set aside for that.
//
// A node that is gone keeps its lease for a grace period, so that a connection may break; a later incarnation of it does not, nor
// does one whose process was seen to end (DeadNodes). What was in a lease is wiped before anybody else gets the memory.
//
// Threads: step(), and claim(), belong to the thread that progresses the transport; statistics() and poke() are for any.
#pragma once

#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/dead_nodes.hpp"
#include "rdma/event_batch.hpp"
#include "rdma/extents.hpp"
#include "rdma/lending.hpp"
#include "rdma/reply_cache.hpp"
#include "rdma/workers.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct ServiceStatistics {
  std::uint64_t lent_bytes = 0, disk_lent_bytes = 0;  // in leases
  std::uint64_t held_bytes = 0, disk_held_bytes = 0;  // in pages
  std::uint64_t clients = 0, pages = 0;
  std::uint64_t remembered = 0;  // nodes of which anything is known
  std::uint64_t stored_bytes = 0, fetched_bytes = 0;
  std::uint64_t damaged = 0;   // pages whose checksum differed, on arrival or later
  std::uint64_t rejected = 0;  // messages that were garbled, stale, or somebody else's
};

class MemoryService final : public Receiver {
 public:
  struct Config {
    const Clock* clock = nullptr;     // outlives the service, as do memory and disk
    Bytes memory;                     // what is lent, and behind it
    std::uint64_t staging_bytes = 0;  // this much of it, for pages on their way to and from the disk
    tiers::Tier* disk = nullptr;      // one that moves host memory
    std::uint64_t client_bytes = std::numeric_limits<std::uint64_t>::max();  // of memory, and of disk, for one node
    std::uint64_t grace_us = 60'000'000;
    std::uint64_t request_us = 10'000'000;  // for a page on the way here, or from here
    std::uint64_t silence_us = 60'000'000;  // a node that says nothing for this long is disconnected
    std::uint32_t workers = 0;
  };
  explicit MemoryService(Config config);
  ~MemoryService() override;

  // Before anything else; the transport outlives stop().
  Status start(Transport& transport);
  bool step();
  // By the thread that progressed the transport, or after its end: closes all connections.
  void stop();
  void poke() noexcept;
  ServiceStatistics statistics() const;

  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) override;

 private:
  struct Entry {
    enum class State : std::uint8_t { arriving, held };
    wire::SealedPage page;
    std::uint64_t sequence = 0;
    State state = State::arriving;
    std::uint32_t readers = 0;
    bool released = false;  // goes when its readers have
    std::optional<tiers::SlotId> disk_slot;
  };
  struct Lease {
    std::uint64_t id = 0;
    NodeIdentity client;
    std::string tenant;  // the identity that it proved
    PeerId peer{};       // none: gone since
    std::uint64_t gone_us = 0;
    std::uint64_t first = 0, bytes = 0;  // in our memory
    std::uint64_t disk_range = 0;        // offsets on disks are below this
    std::uint64_t disk_bytes = 0;        // of it may be used: less, once a disk has failed
    std::uint64_t touched = 0;           // nothing was written at or beyond
    std::map<std::uint64_t, Entry> entries;
    std::uint32_t busy = 0;  // messages, work and transfers that use its memory
  };
  using LeaseRef = std::shared_ptr<Lease>;
  // A page on its way here or from here.
  struct Passage {
    LeaseRef lease;
    PeerId peer{};
    wire::RequestId request;
    wire::PageAt at;
    Bytes memory;                          // where its bytes are
    std::optional<std::uint64_t> staging;  // where in the staging memory
    std::uint64_t id = 0;                  // of the disk's transfer
    bool in = false;                       // on its way here
  };
  using PassageRef = std::shared_ptr<Passage>;
  struct Peer {
    NodeIdentity node;
    std::string tenant;  // the identity that it proved
    std::uint64_t heard_us = 0;
    ProcessRef process;
    std::optional<std::uint64_t> asked_us;  // first, and was told to ask again
    bool closing = false;
  };

  void handle(PeerId peer, Connected& connected);
  void handle(PeerId peer, Message& message);
  void handle(PeerId peer, ReceiveFailed& failed);
  void handle(PeerId peer, Sent& sent);
  void handle(PeerId peer, SendFailed& failed);
  void handle(PeerId peer, Gone& gone);
  void refuse(PeerId peer, const Connected& connected);
  void close(PeerId peer, Peer& known);
  bool is_from(PeerId peer, const wire::Header& header);
  bool admit(PeerId peer, const wire::Header& header);
  void on_ask(PeerId peer, const wire::Header& header, ConstBytes body);
  void on_end(PeerId peer, const wire::Header& header, ConstBytes body);
  void on_fetch(PeerId peer, const wire::Header& header, ConstBytes body);
  void on_release(PeerId peer, const wire::Header& header, ConstBytes body);
  void send(PeerId peer, const wire::RequestId& request, wire::Kind kind, ConstBytes body, bool remember);
  bool empty_outbox();
  void answer(const Passage& passage, wire::Answer answer);

  // Leases.
  LeaseRef grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask);
  std::uint64_t share(std::uint64_t asked, std::uint64_t there) const;
  std::uint64_t free_disk_bytes() const;
  bool comes(const wire::Ask& ask) const;
  bool waits(Peer& asking);
  wire::Lent full() const;
  void end_lease(NodeId client);
  void end_dead(NodeIdentity node);
  bool find_dead();
  bool end_leases();
  bool expire();

  // Pages.
  wire::Answer make_place(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);
  Entry* entry_of(const Passage& passage);
  void erase(Lease& lease, std::map<std::uint64_t, Entry>::iterator entry);
  void arrived(const PassageRef& passage);
  void verified(const PassageRef& passage, wire::Answer found);
  void end_put(const PassageRef& passage, wire::Answer answer);
  void end_fetch(const PassageRef& passage, wire::Answer answer);
  void send_page(const PassageRef& passage);
  void left(const PassageRef& passage);
  bool give_staging(Passage& passage);
  void take_staging(Passage& passage);
  bool serve_disk();
  void to_disk(const PassageRef& passage, tiers::Direction direction, tiers::SlotId slot);
  void disk_failed(const Error& error);
  bool follow_disk();
  void tell(const Lease& lease);
  void publish();

  const Config config_;
  // Peers decide how often these happen.
  LogLimit came_, refused_, went_, ended_, died_, leased_, unsent_, unwritten_, disk_failures_;
  Transport* transport_ = nullptr;
  EventBatch events_;
  bool stopping_ = false;  // nobody is served any more
  std::unique_ptr<Slab> slab_;
  Extents room_, staging_;
  std::uint64_t last_lease_ = 0, last_token_ = 0;
  std::map<PeerId, Peer> peers_;
  std::map<NodeId, LeaseRef> leases_;
  DeadNodes dead_;
  std::uint64_t look_us_ = 0;  // for the dead, next
  std::list<LeaseRef> ending_;
  std::uint32_t wiping_ = 0;  // leases that were ended
  ReplyCache replies_;
  std::map<std::uint64_t, PassageRef> landing_;  // by claim
  std::map<SendId, PassageRef> leaving_;
  std::list<PassageRef> want_disk_slot_;
  std::map<std::uint64_t, PassageRef> on_disk_;                    // by transfer
  std::vector<std::pair<PeerId, std::vector<std::byte>>> outbox_;  // replies
  ServiceStatistics now_;
  std::unique_ptr<Workers> workers_;

  mutable std::mutex mutex_;
  ServiceStatistics published_;  // protected by mutex_
};

}  // namespace vmem::rdma
