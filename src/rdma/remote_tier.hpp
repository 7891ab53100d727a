// Pages in the memory, and on the disks, of other nodes, each of which runs a MemoryService. They come from, and go to, slots of
// pinned host memory: the bytes there are sent, and received into, in place. What leaves is authenticated, or encrypted, with a key that
// only this process has (PageAead), and checked when it comes back: a lender need not be trusted to keep bytes. It gets a checksum (the
// seal) of what it keeps, to find accidents with.
//
// A slot is one or two places (`replicas`) on different nodes. Every request has a deadline; when it passes, the connection is closed by
// force and made again. A lender's copies are dropped only on proof: its process was seen to end (DeadNodes), another
// incarnation answers at its address, or it does not know our lease. A page without another copy is lost then. Silence and
// refused connections prove nothing: a load without an answer for `patience_us` fails with TIMEOUT, and the page is kept. A
// dropped copy is made again when its page is stored the next time.
//
// One thread progresses the transport and does everything here that waits for the network (remote_node.cpp: the connections); others
// make and check seals. The mover's calls wait for none of them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/dead_nodes.hpp"
#include "rdma/event_batch.hpp"
#include "rdma/extents.hpp"
#include "rdma/lending.hpp"
#include "rdma/page_buffers.hpp"
#include "rdma/progress_thread.hpp"
#include "rdma/trust/page_aead.hpp"
#include "rdma/workers.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct RemoteStatistics {
  std::uint64_t stored_bytes = 0, fetched_bytes = 0;  // copies sent, pages brought back
  std::uint64_t reconnects = 0;
  std::uint64_t checksum_failures = 0;  // pages that arrived wrong, there or here
  std::uint64_t copies_lost = 0;        // of pages, with the nodes that had them
  std::uint64_t single_copies = 0;      // pages stored with fewer copies than asked for
  std::uint64_t retries = 0;            // requests that had to be made again
};

class RemoteTier final : public tiers::Tier, public Receiver {
 public:
  static constexpr std::uint32_t kMostReplicas = 2;
  using MakeTransport = std::function<Result<std::unique_ptr<Transport>>(Receiver&)>;
  enum class Credentials : std::uint8_t { user, secret, certificates };  // user: over Unix sockets
  struct Config {
    NodeIdentity self;
    std::vector<std::string> peers;  // addresses
    MakeTransport make_transport;
    const Clock* clock = nullptr;  // outlives the tier
    std::uint32_t replicas = 1;
    std::uint64_t borrow_bytes = std::numeric_limits<std::uint64_t>::max();  // of memory, and of disk, from each
    std::uint64_t tenant = 0;
    PageAead::Mode protection = PageAead::Mode::authenticate;
    std::uint64_t request_us = 2'000'000;
    std::uint64_t patience_us = 20'000'000;
    std::uint64_t reconnect_us = 200'000;
    std::uint64_t ping_us = 5'000'000;  // of silence
    std::uint32_t workers = 1;
    std::uint32_t channels = 1;                   // of the transport
    bool own_thread = true;                       // else the owner progresses the transport and steps the tier
    Credentials credentials = Credentials::user;  // of the transport, for messages
    // Whether this node may be at that address, and that it missed a deadline; from the tier's thread.
    std::function<Status(const std::string& address, NodeIdentity node)> heard;
    std::function<void(NodeId node)> missed;
    std::function<void()> on_ready;  // as DiskTier's
  };
  // Errors: those of the transport.
  static Result<std::unique_ptr<RemoteTier>> create(Config config);
  ~RemoteTier() override;

  // Until each peer was reached, or was not. Errors: INVALID_OPTION, naming the first that was not, why, and what to do.
  Status wait_for_peers(std::uint64_t most_us);
  RemoteStatistics statistics() const;
  // "127.0.0.1:7000 by tcp/lo, 8 GiB"
  std::string describe() const;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override;
  // Nodes' memories and disks; with two copies, the budget as one place.
  std::vector<std::uint64_t> places() const override;
  void expect(std::uint64_t, std::uint64_t) override {}  // leases are there from the beginning
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  // A node that does not answer is waited for no longer than a request.
  void finish() noexcept override;
  std::string where(tiers::SlotId slot) const override;
  bool kept(tiers::SlotId slot) const override;

  // Any thread. Gives back all that is borrowed, as the destructor does; nothing is stored or loaded after that. Waits for
  // the lenders for 0.3 s at most.
  void leave();

  // The tier's thread.
  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) override;
  bool step();
  Transport& transport() { return *transport_; }

 private:
  // Where a copy is. Of another lease than the node has now: nowhere any more.
  struct Copy {
    std::uint32_t node = 0;
    std::uint64_t lease = 0;
    std::uint64_t offset = 0;
  };
  struct Slot {
    std::uint64_t bytes = 0;  // 0: free
    std::array<Copy, kMostReplicas> copies;
  };
  // What allocate needs to know of a node.
  struct Room {
    bool ready = false;
    std::uint64_t lease = 0;
    std::uint64_t memory_bytes = 0;
    std::uint64_t disk_range = 0, disk_bytes = 0;  // of the range, so much may be used: less, once the disk has failed
    Extents memory, disk;
    std::uint64_t free_disk_bytes() const {
      const std::uint64_t used = disk_range - disk.free_bytes();
      return disk_bytes - std::min(disk_bytes, used);
    }
    std::uint64_t largest_on_disk() const { return std::min(disk.largest_bytes(), free_disk_bytes()); }
    std::uint64_t largest() const { return std::max(memory.largest_bytes(), largest_on_disk()); }
    std::uint64_t free_bytes() const { return memory.free_bytes() + free_disk_bytes(); }
    bool disk_failed() const { return disk_bytes < disk_range; }
  };
  // What a slot holds: the tier's thread knows.
  struct Held {
    wire::SealedPage page;    // with the seal of what the places hold
    tiers::Checksum content;  // of the page itself
    PageAead::Proof proof;
    std::array<bool, kMostReplicas> valid{};
  };
  struct Node {
    enum class State : std::uint8_t { away, connecting, asking, ready };
    std::string address;
    State state = State::away;
    PeerId peer{};
    NodeIdentity identity;
    std::string path;
    std::uint64_t lease = 0;
    std::uint64_t again_us = 0;  // when away: the next attempt
    std::uint64_t rest_us = 0;   // before that, at least
    std::uint64_t ask_us = 0;    // when asking: the next time, once it was answered "again"
    std::uint64_t heard_us = 0;  // its last answer
    bool was_ready = false;
    bool closing = false;
    bool is_full = false;         // it answered, and has no room for us
    bool nobody_listens = false;  // at its address
    bool pinged = false;
    std::string why;  // it is away
  };
  enum class Leg : std::uint8_t { none, wanted, under_way, done, failed };
  struct Job {
    tiers::Transfer transfer;
    wire::SealedPage page;
    tiers::Checksum content;
    PageAead::Proof proof;
    PageBuffers::Buffer encrypted;  // what is stored, unless that is the page as it is
    Bytes stored;                   // what is sent, or where what is fetched arrives
    bool same = false;              // stored if_changed, and the slot holds it already
    bool unchanged = false;         // and all its copies are there
    std::unique_ptr<Slab> slab;
    std::array<Leg, kMostReplicas> legs{};
    std::array<std::uint32_t, kMostReplicas> tries{};
    std::optional<std::size_t> doubted;  // the copy that arrived wrong last: its lender is asked to look
    std::uint64_t begun_us = 0, give_up_us = 0, again_us = 0;
    std::uint32_t under_way = 0;
    bool waits = false;  // is in waiting_
    bool kept = false;   // a node has a copy that it could not read
    Error error{VMEM_ERROR_LOST, 0, "no node has a copy"};
  };
  using JobRef = std::shared_ptr<Job>;
  struct Request {
    wire::Kind kind = wire::Kind::ping;
    std::uint32_t node = 0;
    JobRef job;
    std::size_t copy = 0;
    std::uint64_t deadline_us = 0;
    SendId sending{};      // its payload's memory is in use
    bool landing = false;  // so is the memory that the page arrives in
    std::optional<wire::Answer> answer;
    bool broken = false;  // no answer will come
  };
  struct Release {
    tiers::SlotId slot;
    Slot places;
  };
  struct Farewell {};
  struct Hurry {};  // nobody is waited for any longer
  using Posted = std::variant<JobRef, Release, Farewell, Hurry>;

  explicit RemoteTier(Config config);
  Status open();
  void post(Posted posted);

  // What the mover posted, and jobs (remote_tier.cpp).
  bool take_posted();
  void take(const JobRef& job);
  void take(const Release& release);
  void take(Farewell);
  void take(Hurry);
  void seal(const JobRef& job);
  void lacked_memory(Job& job, std::string_view what) const;
  Status protect(Job& job, const Held& before);
  void prepared(const JobRef& job);
  bool go_on();
  void wait(const JobRef& job);
  bool late(const Job& job) const;
  void advance(const JobRef& job);
  void advance_store(const JobRef& job);
  void advance_load(const JobRef& job);
  bool store_copy(const JobRef& job, std::size_t copy);
  bool replace_copy(tiers::SlotId slot, std::size_t copy);
  std::string failure_words(const Copy& at, wire::Answer answer) const;
  void put(const JobRef& job, std::size_t copy);
  void fetch(const JobRef& job, std::size_t copy);
  void ended(const Request& request);
  void put_ended(const Request& request);
  void fetch_ended(const Request& request);
  void check(const JobRef& job, std::size_t copy);
  void checked(const JobRef& job, std::size_t copy, bool good);
  void copy_failed(const JobRef& job, std::size_t copy, const std::string& why);
  void copy_unread(const JobRef& job, std::size_t copy);
  void complete(const JobRef& job, tiers::Outcome outcome);
  Slot slot_of(tiers::SlotId slot) const;
  bool there(const Copy& copy) const;
  std::uint64_t storable(std::span<const std::uint64_t> rooms) const;
  std::optional<Copy> place(std::uint64_t bytes, std::span<const Copy> apart_from);
  void give_back(const Slot& slot);
  Result<tiers::SlotGrant> no_room(std::uint64_t page_bytes) const;
  std::string words(const Job& job) const;

  // Connections and requests (remote_node.cpp).
  void handle(PeerId peer, Connected& connected);
  void handle(PeerId peer, Message& message);
  void handle(PeerId peer, ReceiveFailed& failed);
  void handle(PeerId peer, Sent& sent);
  void handle(PeerId peer, SendFailed& failed);
  void handle(PeerId peer, Gone& gone);
  void ask(Node& node);
  void on_lent(Node& node, const wire::Lent& lent);
  void on_less(const Node& node, const wire::Lent& lent);
  void lose_lease(std::uint32_t node, const std::string& why);
  bool find_dead();
  bool keep_connected();
  bool expire();
  void close(Node& node);
  std::uint64_t request(Request request, ConstBytes body, Bytes payload = {});
  void settle(std::uint64_t sequence);
  Node* node_of(PeerId peer);
  std::uint32_t index_of(const Node& node) const { return static_cast<std::uint32_t>(&node - nodes_.data()); }
  void first_outcome(Node& node);

  const Config config_;
  LogLimit unused_, broken_, unsent_, back_, lost_, less_;  // nodes decide how often
  const tiers::TierInfo info_;
  std::unique_ptr<Transport> transport_;

  std::unique_ptr<PageAead> aead_;
  PageBuffers buffers_;

  // The tier's thread's.
  EventBatch events_;
  std::vector<Node> nodes_;
  DeadNodes dead_;             // lenders on this machine whose process ends
  std::uint64_t look_us_ = 0;  // for them, next
  std::unordered_map<tiers::SlotId, Held> held_;
  std::list<JobRef> waiting_;  // for a node, or for their turn
  std::map<std::uint64_t, Request> requests_;
  std::map<SendId, std::uint64_t> sends_;  // sequence
  std::uint64_t last_sequence_ = 0;
  std::uint64_t latest_us_ = std::numeric_limits<std::uint64_t>::max();  // nobody is waited for any longer
  bool leaving_ = false;

  mutable std::mutex mutex_;  // below; the transport is not called with it held
  std::condition_variable changed_;
  std::vector<Room> rooms_;  // of nodes_
  std::vector<Slot> slots_;
  std::vector<tiers::SlotId> free_slots_;
  std::uint64_t used_bytes_ = 0;
  std::vector<Posted> posted_;
  std::vector<tiers::Completion> completions_;
  std::uint64_t jobs_ = 0;  // not completed
  RemoteStatistics statistics_;
  struct Reached {
    bool tried = false, reached = false, full = false, nobody_listens = false;
    std::string path, why;
  };
  std::vector<Reached> reached_;  // of nodes_, at first
  std::uint32_t farewells_ = 0;   // not answered
  bool said_farewell_ = false;

  std::unique_ptr<Workers> workers_;
  std::unique_ptr<ProgressThread> thread_;
};

}  // namespace vmem::rdma
