// Pings tell whether a connection still carries anything. One that is not answered in time closes
// its connection, as any late call does (Node::close_late).
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <set>

#include "base/clock.hpp"
#include "rdma/node/calls.hpp"
#include "rdma/node/peer_book.hpp"

namespace vmem::rdma {

class Pings {
 public:
  static constexpr std::uint64_t kQuietUs = 100'000;

  Pings(Calls& calls, const PeerBook& peers, const Clock& clock, std::uint64_t answer_us)
      : calls_(calls), peers_(peers), clock_(clock), answer_us_(answer_us) {}

  // Unless one is on its way over this connection.
  void send(PeerId peer);
  // For a message without an answer of its own: whether it arrives shows only by what the peer says
  // next. Nothing if the peer has said something within kQuietUs.
  void send_if_quiet(PeerId peer);

 private:
  Calls& calls_;
  const PeerBook& peers_;
  const Clock& clock_;
  const std::uint64_t answer_us_;
  std::set<PeerId> sent_;  // not answered yet
};

}  // namespace vmem::rdma
