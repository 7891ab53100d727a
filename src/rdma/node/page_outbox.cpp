#include "rdma/node/page_outbox.hpp"

#include <algorithm>
#include <utility>

namespace vmem::rdma {

std::uint32_t PageOutbox::most_in_transport(PeerId peer) const {
  const Peer* const to = peers_.find(peer);
  return to == nullptr ? 0 : std::max(to->channels, 1u);
}

void PageOutbox::add(PeerId peer, wire::Order order, Go go) {
  Queue& queue = queues_[peer];
  queue.waiting[static_cast<std::size_t>(order)].push_back(std::move(go));
  ++waiting_;
  if (peers_.find(peer) == nullptr) return gone(peer);
  while (queue.in_transport < most_in_transport(peer) && send_one(peer, queue)) {
  }
}

// True: something was taken from the queue.
bool PageOutbox::send_one(PeerId peer, Queue& queue) {
  const auto next = queue.turns.next(queue.waiting);
  if (!next) return false;
  Go go = std::move(queue.waiting[*next].front());
  queue.waiting[*next].pop_front();
  queue.turns.went(*next, queue.waiting);
  --waiting_;
  last_ = peer;
  const auto id = go();
  if (!id) return true;
  ++queue.in_transport;
  sends_.emplace(*id, peer);
  return true;
}

void PageOutbox::ended(SendId id) {
  const auto send = sends_.extract(id);
  if (send.empty()) return;
  const auto queue = queues_.find(send.mapped());
  if (queue != queues_.end()) --queue->second.in_transport;
}

// Their sends fail, which ends the pages as usual.
void PageOutbox::gone(PeerId peer) {
  auto queue = queues_.extract(peer);
  if (queue.empty()) return;
  for (std::deque<Go>& waiting : queue.mapped().waiting) {
    waiting_ -= waiting.size();
    for (Go& go : waiting) (void)go();
  }
}

std::vector<PeerId> PageOutbox::waiting() const {
  std::vector<PeerId> peers;
  for (const auto& [peer, queue] : queues_) {
    if (std::ranges::any_of(queue.waiting, [](const auto& each) { return !each.empty(); })) peers.push_back(peer);
  }
  return peers;
}

// One page for each node in turn, beginning with the node after the last.
bool PageOutbox::step() {
  bool did = false;
  for (bool any = waiting_ != 0; any; did |= any) {
    any = false;
    auto turn = queues_.upper_bound(last_);
    for (std::size_t left = queues_.size(); left > 0; --left, ++turn) {
      if (turn == queues_.end()) turn = queues_.begin();
      if (turn->second.in_transport < most_in_transport(turn->first)) any |= send_one(turn->first, turn->second);
    }
  }
  return did;
}

}  // namespace vmem::rdma
