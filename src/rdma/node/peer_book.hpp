// The nodes that are connected, by either side's doing. Of the connections that other nodes make, a
// node keeps one: the latest of its latest incarnation. A node only claims its id. So while a
// tenant has a connection under an id, other tenants cannot connect under it.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/node/service.hpp"

namespace vmem::rdma {

class PeerBook {
 public:
  // A connection that another node made is closed after so long without a message.
  PeerBook(Transport& transport, const Clock& clock, std::uint64_t silence_us)
      : transport_(transport), clock_(clock), silence_us_(silence_us) {}

  // Null: the connection is refused, and being closed. `admit` has the last word.
  const Peer* connected(PeerId peer, const Connected& connected, const std::function<Status(const Connected&)>& admit);
  // The peer, which is in the book no more; nullopt: it was not.
  std::optional<Peer> gone(PeerId peer, const Gone& gone);

  const Peer* find(PeerId peer) const;
  // A connection to the node, whichever side made it, that is not being closed; of several the one
  // that something came over last.
  const Peer* find(NodeIdentity node) const;
  // Of the messages to the peer. A peer that is gone has any.
  std::uint16_t version(PeerId peer) const;
  // See Connected; a peer that is gone takes none.
  bool takes_gpu_memory(PeerId peer) const;
  // Whether the request names the node of its connection, which counts as heard then.
  bool is_from(const Peer& peer, const wire::Header& header);
  void heard(PeerId peer);
  // Whether the peer has said something within that time. A peer that is gone has not.
  bool was_heard(PeerId peer, std::uint64_t within_us) const;
  bool has(NodeId node) const;
  // Whether another tenant is connected under the id.
  bool is_anothers(NodeId node, const std::string& tenant) const;
  bool has_incoming() const;
  // Messages and connections that were refused.
  std::uint64_t rejected() const noexcept { return rejected_; }
  void reject() noexcept { ++rejected_; }

  void close(PeerId peer);
  void close_node(NodeIdentity node);
  void close_incoming();
  void close_silent();

 private:
  struct Entry {
    Peer peer;
    std::uint64_t heard_us = 0;
    bool closing = false;
  };
  bool take_place(const Connected& connected);
  const Peer* refuse(PeerId peer, const Connected& connected, const Error& why);
  void close(Entry& entry);

  Transport& transport_;
  const Clock& clock_;
  const std::uint64_t silence_us_;
  LogLimit came_, refused_, went_;  // rate-limited: peers decide how often
  std::map<PeerId, Entry> peers_;
  std::uint64_t rejected_ = 0;
};

}  // namespace vmem::rdma
