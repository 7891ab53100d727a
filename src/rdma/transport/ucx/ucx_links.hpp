// The links of a UcxTransport, from their first connection to their end.
//
// A failed link is marked. Then settle() stops all its channels, tells the peer, and waits, for at
// most 100 ms, until the peer has stopped its channels too. Then it ends the channels, and reports
// the peer as gone after the last one.
//
// Thread: the progressing one.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "rdma/transport/deadlines.hpp"
#include "rdma/transport/ucx/ucx_link.hpp"
#include "rdma/transport/ucx/ucx_loop.hpp"
#include "rdma/transport/ucx/ucx_peers.hpp"
#include "rdma/transport/ucx/ucx_poll.hpp"
#include "rdma/transport/ucx/ucx_sender.hpp"
#include "rdma/trust/admission.hpp"

namespace vmem::rdma {

class UcxLinks {
 public:
  // All outlive this.
  struct Parts {
    UcxLoopOwner& owner;
    const UcxLoops& loops;
    UcxPeers& peers;
    const UcxSender& sender;
    UcxPoll& poll;
    Admission& admission;
    Receiver& receiver;
    const Clock& clock;
  };
  explicit UcxLinks(Parts parts) : parts_(parts) {}

  // The deadline is for connecting.
  UcxLink& add(UcxPeerRef peer, std::uint64_t deadline_us);
  UcxLink* find(PeerId peer);
  bool empty() const { return links_.empty(); }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [peer, link] : links_) visit(*link);
  }

  // A send that was posted before its peer was connected.
  void send(std::unique_ptr<UcxSend> send);
  void handle(UcxReport report);
  // The socket of a link that is past its introduction is readable.
  void socket_is_ready(UcxLink& link);
  void fail(UcxLink& link, Reason reason, Error error);
  void close(PeerId peer);
  bool settle();
  bool expire();

  // Whether settle() has a link to end.
  bool has_left() const { return !left_.empty(); }
  // The transport ends: fails all links. `wait_no_more`: ends those whose peers have not left.
  enum class Patience : std::uint8_t { wait_for_peers, wait_no_more };
  void end_all(Patience patience);

 private:
  void handle(const UcxConnected& connected);
  void handle(UcxAnnounced& announced);
  void handle(UcxFailed& failed);
  void handle(const UcxStopped& stopped);
  void handle(const UcxEnded& ended);
  void read_farewell(UcxLink& link);
  void stop(UcxLink& link);
  void leave(UcxLink& link);
  void end_leaving(UcxLink& link);
  void end(UcxLink& link);
  void forget(UcxLink& link);

  const Parts parts_;
  std::unordered_map<PeerId, std::unique_ptr<UcxLink>> links_;
  std::vector<UcxLink*> failed_;  // to be stopped
  std::vector<UcxLink*> left_;    // to be ended
  Deadlines deadlines_;
};

}  // namespace vmem::rdma
