// The peers of a StreamTransport that are not gone, and the numbers of peers and sends. Any thread.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma::stream {

struct StreamPeer {
  std::atomic<std::size_t> outstanding = 0;  // sends
};
using StreamPeerRef = std::shared_ptr<StreamPeer>;

class StreamPeers {
 public:
  struct Numbered {
    SendId id{};
    StreamPeerRef peer;  // null: it is gone
  };

  PeerId add() {
    auto peer = std::make_shared<StreamPeer>();
    const std::lock_guard lock(mutex_);
    const PeerId id{++last_peer_};
    peers_.emplace(id, std::move(peer));
    return id;
  }
  // REQUIRES: the peer is not gone.
  StreamPeerRef at(PeerId id) {
    const std::lock_guard lock(mutex_);
    return peers_.at(id);
  }
  void remove(PeerId id) {
    const std::lock_guard lock(mutex_);
    peers_.erase(id);
  }
  // Numbers a send and counts it as outstanding. Errors: OUT_OF_MEMORY beyond kMostOutstanding.
  Result<Numbered> begin_send(PeerId to) {
    const std::lock_guard lock(mutex_);
    const auto known = peers_.find(to);
    StreamPeerRef peer = known == peers_.end() ? nullptr : known->second;
    if (peer && peer->outstanding.load(std::memory_order_relaxed) >= kMostOutstanding)
      return fail(VMEM_ERROR_OUT_OF_MEMORY,
                  fmt::format("{} messages to one peer are in flight, which is the most", kMostOutstanding));
    if (peer) peer->outstanding.fetch_add(1, std::memory_order_relaxed);
    return Numbered{SendId{++last_send_}, std::move(peer)};
  }

 private:
  std::mutex mutex_;
  // Protected by mutex_.
  std::unordered_map<PeerId, StreamPeerRef> peers_;
  std::uint64_t last_peer_ = 0, last_send_ = 0;
};

}  // namespace vmem::rdma::stream
