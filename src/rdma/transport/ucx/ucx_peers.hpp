// The peers of a UcxTransport that are not gone, and the numbers of peers and sends. Any thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "rdma/transport/ucx/ucx_channel.hpp"

namespace vmem::rdma {

class UcxPeers {
 public:
  UcxPeerRef add(std::string address, bool by_us) {
    auto peer = std::make_shared<UcxPeer>();
    peer->by_us = by_us;
    peer->address = std::move(address);
    const std::lock_guard lock(mutex_);
    peer->id = PeerId{++last_peer_};
    peers_.emplace(peer->id, peer);
    return peer;
  }
  void remove(PeerId peer) {
    const std::lock_guard lock(mutex_);
    peers_.erase(peer);
  }
  // Numbers the send and counts it as outstanding; its peer stays null if that is gone.
  // Errors: OUT_OF_MEMORY beyond kMostOutstanding.
  Status begin_send(PeerId to, UcxSend& send) {
    const std::lock_guard lock(mutex_);
    if (const auto known = peers_.find(to); known != peers_.end()) {
      if (known->second->outstanding.load(std::memory_order_relaxed) >= kMostOutstanding)
        return fail(VMEM_ERROR_OUT_OF_MEMORY,
                    fmt::format("{} messages to one peer are under way, which is the most", kMostOutstanding));
      send.peer = known->second;
      send.peer->outstanding.fetch_add(1, std::memory_order_relaxed);
    }
    send.id = SendId{++last_send_};
    return {};
  }

 private:
  std::mutex mutex_;
  // Protected by mutex_.
  std::unordered_map<PeerId, UcxPeerRef> peers_;
  std::uint64_t last_peer_ = 0, last_send_ = 0;
};

}  // namespace vmem::rdma
