// Pings tell whether a connection still carries anything. One that is not answered in time closes
// its connection, as any late call does (Node::close_late). So none is sent while an answer of the
// peer is awaited.
//
// Thread: the node's.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "rdma/node/calls.hpp"
#include "rdma/node/peer_book.hpp"

namespace vmem::rdma {

class Pings {
 public:
  Pings(Calls& calls, const PeerBook& peers, const Clock& clock, std::uint64_t answer_us)
      : calls_(calls), peers_(peers), clock_(clock), answer_us_(answer_us) {}

  void send(PeerId peer);
  // Unless the peer has said something within that time.
  void send_if_quiet(PeerId peer, std::uint64_t within_us);

 private:
  Calls& calls_;
  const PeerBook& peers_;
  const Clock& clock_;
  const std::uint64_t answer_us_;
};

}  // namespace vmem::rdma
