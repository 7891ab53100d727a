// What a UcxTransport keeps of one peer. All of it belongs to the thread that progresses the transport.
#pragma once

#include <optional>

#include "base/file_descriptor.hpp"
#include "rdma/ucx_channel.hpp"

namespace vmem::rdma {

struct UcxLink {
  UcxPeerRef peer;
  std::uint64_t deadline_us = 0;  // for being connected; while it is leaving, for the peer
  bool connected = false;
  std::optional<UcxFailure> failure;
  std::shared_ptr<void> entrance;              // what the peer was told of and no loop has; closed after the socket
  FileDescriptor socket;                       // the handshake's: what dies with the other process
  std::uint32_t channels = 0;                  // that loops have
  std::uint32_t running = 0;                   // of those: not stopped yet. Counted when it has failed
  bool leaving = false;                        // it was said, and the peer has not left yet
  std::vector<std::unique_ptr<UcxSend>> held;  // until it is connected
};

}  // namespace vmem::rdma
