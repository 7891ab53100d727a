// Replies: remembered, so that a repeated request is carried out once, and sent at the end of a
// step. claim() cannot send them itself: the transport is calling it.
//
// Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/log_limit.hpp"
#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/memory_service/reply_cache.hpp"
#include "rdma/lending/memory_service/service_config.hpp"
#include "rdma/lending/protocol.hpp"
#include "rdma/node/peer_book.hpp"

namespace vmem::rdma {

class ReplyBox {
 public:
  enum class Repeat : std::uint8_t {
    forget,    // a repeated request is carried out again
    remember,  // it gets the same reply
  };

  // All outlive this.
  ReplyBox(const ServiceConfig& config, Transport& transport, const PeerBook& peers, ServiceStatistics& statistics)
      : config_(config), transport_(transport), peers_(peers), statistics_(statistics) {}

  // True if the request is to be carried out. Sends the earlier reply to a repeated request.
  bool admit(PeerId peer, const wire::Header& header);
  void send(PeerId peer, const wire::RequestId& request, wire::Kind kind, ConstBytes body,
            Repeat repeat = Repeat::forget);
  // Answers an ask, in the form of the peer's version.
  void send(PeerId peer, const wire::RequestId& request, const wire::Lent& lent) {
    send(peer, request, wire::Kind::allocated, wire::encode(lent, peers_.version(peer)));
  }
  // The admitted request has no remembered reply: a retry is carried out.
  void abandon(const wire::RequestId& request) { cache_.abandoned(request); }
  // Nothing is remembered for the node any more.
  void forget(NodeId client) { cache_.forget(static_cast<std::uint64_t>(client)); }
  std::size_t clients() const { return cache_.clients(); }

  // Sends what is queued; false: nothing was.
  bool flush();

 private:
  const ServiceConfig& config_;
  Transport& transport_;
  const PeerBook& peers_;
  ServiceStatistics& statistics_;
  LogLimit unwritten_;
  ReplyCache cache_;
  std::vector<std::pair<PeerId, std::vector<std::byte>>> queued_;
};

}  // namespace vmem::rdma
