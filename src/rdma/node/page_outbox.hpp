// Pages that this node sends because others asked for them. What the transport has cannot be
// overtaken: it gets as many pages for a node as there are channels, and the others wait here.
// Those that somebody waits for go first (Order), and nodes take turns. So a node that asks for
// much delays another's page by no more than the page that is being sent.
//
// Thread: the node's.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "rdma/node/order_turns.hpp"
#include "rdma/node/peer_book.hpp"

namespace vmem::rdma {

class PageOutbox {
 public:
  // Sends the page, when its turn comes or the node is gone. nullopt: it was not sent.
  using Go = std::move_only_function<std::optional<SendId>()>;

  explicit PageOutbox(const PeerBook& peers) : peers_(peers) {}

  // `go` is called once, perhaps now.
  void add(PeerId peer, wire::Order order, Go go);
  // Ends of sends, perhaps of others'.
  void ended(SendId id);
  void gone(PeerId peer);
  // Gives the transport what may go; true: there was something.
  bool step();
  // For whom pages wait.
  std::vector<PeerId> waiting() const;

 private:
  struct Queue {
    std::array<std::deque<Go>, wire::kOrders> waiting;  // by Order
    OrderTurns turns;
    std::uint32_t in_transport = 0;
  };
  std::uint32_t most_in_transport(PeerId peer) const;
  bool send_one(PeerId peer, Queue& queue);

  const PeerBook& peers_;
  std::map<PeerId, Queue> queues_;
  std::map<SendId, PeerId> sends_;  // in the transport
  std::size_t waiting_ = 0;         // in all queues
  PeerId last_{};                   // whose page went last
};

}  // namespace vmem::rdma
