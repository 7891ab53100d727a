// A UcxTransport's state of one peer. It belongs to the thread that progresses the transport.
#pragma once

#include <memory>
#include <optional>

#include "rdma/transport/ucx/ucx_address_check.hpp"
#include "rdma/transport/ucx/ucx_channel.hpp"
#include "rdma/trust/byte_stream.hpp"

namespace vmem::rdma {

struct UcxLink {
  UcxPeerRef peer;
  std::uint64_t deadline_us = 0;  // for connecting; when leaving: for the peer to leave
  bool connected = false;
  std::optional<UcxFailure> failure;
  NodeIdentity node;
  TlsPeer proved;
  std::vector<UcxWorkerRef> workers;      // announced, not yet given to a loop; outlive the stream
  UcxIntroduction introduction;           // ours
  ByteStream stream;                      // authenticated; breaks when the peer's process ends
  std::unique_ptr<UcxExchange> exchange;  // until both introductions are complete
  UcxIntroduction theirs;                 // the peer's, while it is being checked
  std::optional<UcxAddressCheck> check;
  std::uint32_t channels = 0;                  // held by loops
  std::uint32_t running = 0;                   // of those, not yet stopped; set once it has failed
  bool leaving = false;                        // told the peer, which has not left yet
  std::vector<std::unique_ptr<UcxSend>> held;  // sends posted before it is connected
};

}  // namespace vmem::rdma
