// Requests of this node to others that wait for their replies. A call ends once it is answered, or
// no answer can come, and the transport no longer uses its memory.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "rdma/node/wire.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class PeerBook;
class Service;

struct Call {
  PeerId peer{};
  wire::Kind kind = wire::Kind::ping;
  ConstBytes body = {};     // copied
  ConstBytes payload = {};  // memory in a slab, unchanged until the call ends
  Bytes destination = {};   // memory in a slab for the reply's payload; empty: it has none
  // Sizes of the reply's body; others are ignored.
  struct ReplyBytes {
    std::size_t least = 0, most = 0;
    constexpr ReplyBytes(std::size_t bytes = 0) : least(bytes), most(bytes) {}
    constexpr ReplyBytes(std::size_t from, std::size_t to) : least(from), most(to) {}
  };
  ReplyBytes reply_bytes;
  std::uint64_t deadline_us = 0;   // after it, the node closes the connection
  const Service* owner = nullptr;  // null: the node itself
  wire::Order order = wire::Order::foreground;
};

struct CallEnd {
  bool answered = false;  // false: the connection is gone; the request may have been carried out
  bool landed = false;    // the reply's payload is in the destination
  std::vector<std::byte> body = {};
};

class Calls {
 public:
  using Then = std::move_only_function<void(const CallEnd&)>;

  Calls(Transport& transport, const PeerBook& peers, const Clock& clock, NodeIdentity self)
      : transport_(transport), peers_(peers), clock_(clock), self_(self) {}

  // Errors: those of Transport::send. The call then does not end: `then` is not called.
  Status begin(const Call& call, Then then);
  // A request without a reply. Errors: those of Transport::send.
  Status tell(const Call& call);
  // Calls `then` of the calls that have ended, in the order of their ends; false: there were none.
  bool run_ended();

  // Events of the transport.
  std::optional<Claim> claim(PeerId peer, const wire::Parsed& message, std::uint64_t payload_bytes);
  void landed(std::uint64_t token);
  void receive_failed(std::uint64_t token);
  void sent(SendId id);
  void send_failed(SendId id);
  // A reply without a payload. No effect if no call over this connection waits for it.
  void answered(PeerId peer, const wire::Parsed& message);
  // The connection is gone.
  void break_all(PeerId peer);

  // Whether an answer of the peer is awaited.
  bool awaits(PeerId peer) const;
  bool any_of(const Service* owner) const;
  // Forgets the service's calls: they no longer end.
  void drop(const Service* owner);

  // Visits the connections of calls whose deadline has passed; one may come more than once.
  template <class Visit>
  void for_late(Visit visit) const {
    const std::uint64_t now = clock_.now_us();
    for (const auto& [deadline_us, sequence] : deadlines_) {
      if (deadline_us > now) break;
      if (const Open& late = open_.at(sequence); late.is_open()) visit(late.peer);
    }
  }

 private:
  struct Open {
    PeerId peer{};
    wire::Kind kind{};
    const Service* owner = nullptr;
    Bytes destination;
    Call::ReplyBytes reply_bytes;
    std::uint64_t deadline_us = 0;
    Then then;
    SendId sending{};      // set: the payload's memory is in use
    bool landing = false;  // the destination is in use
    bool broken = false;   // no answer will come
    CallEnd end;

    bool is_open() const { return !end.answered && !broken; }
  };
  using OpenCalls = std::map<std::uint64_t, Open>;
  Result<SendId> send(const Call& call, std::uint64_t sequence);
  OpenCalls::iterator find(PeerId peer, const wire::Parsed& message);
  void settle(OpenCalls::iterator call);
  std::optional<std::uint64_t> sender_of(SendId id);

  Transport& transport_;
  const PeerBook& peers_;
  const Clock& clock_;
  const NodeIdentity self_;
  OpenCalls open_;                                               // by sequence
  std::set<std::pair<std::uint64_t, std::uint64_t>> deadlines_;  // of open_: deadline, sequence
  std::map<SendId, std::uint64_t> sends_;                        // to sequence in open_
  std::uint64_t last_sequence_ = 0;
  std::deque<Open> ended_;
};

}  // namespace vmem::rdma
