// What a UcxTransport keeps of one peer. All of it belongs to the thread that progresses the transport.
#pragma once

#include <memory>
#include <optional>

#include "rdma/stream/byte_stream.hpp"
#include "rdma/ucx_address_check.hpp"
#include "rdma/ucx_channel.hpp"

namespace vmem::rdma {

struct UcxLink {
  UcxPeerRef peer;
  std::uint64_t deadline_us = 0;  // for being connected; while it is leaving, for the peer
  bool connected = false;
  std::optional<UcxFailure> failure;
  NodeIdentity node;
  TlsPeer proved;
  std::vector<UcxWorkerRef> workers;      // that the peer was told of and no loop has; closed after the stream
  UcxIntroduction introduction;           // ours
  stream::ByteStream stream;              // where the peer proved itself: what dies with the other process
  std::unique_ptr<UcxExchange> exchange;  // until both have said how they are reached
  UcxIntroduction theirs;                 // while it is being checked
  std::optional<UcxAddressCheck> check;
  std::uint32_t channels = 0;                  // that loops have
  std::uint32_t running = 0;                   // of those: not stopped yet. Counted when it has failed
  bool leaving = false;                        // it was said, and the peer has not left yet
  std::vector<std::unique_ptr<UcxSend>> held;  // until it is connected
};

}  // namespace vmem::rdma
