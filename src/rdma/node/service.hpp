// A part of this process that takes part in the talk with other nodes: the lender of memory, the
// tier of remote pages. A Node delivers to it what concerns it.
//
// Thread: the node's, for all calls. None of them may wait.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "rdma/node/wire.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

// A connected node. A node only claims its id; its tenant is proved.
struct Peer {
  PeerId id{};
  NodeIdentity node;
  std::string tenant;  // proved identity; "": none
  std::string path;    // of the messages, for people
  ProcessRef process;
  bool by_us = false;          // this node made the connection
  std::uint32_t channels = 1;  // that carry payloads
  // Of the messages to and from it. A service whose bodies changed with a version writes and reads
  // them by this.
  std::uint16_t version = kProtocolVersion;
  bool takes_gpu_memory = false;  // see Connected
};

class Service {
 public:
  virtual ~Service() = default;

  // Kinds of the requests that it answers. Each kind has one service.
  virtual std::span<const wire::Kind> kinds() const = 0;
  // Asked before another node's connection is accepted. Errors: why it is closed instead.
  virtual Status admit(const Connected&) { return {}; }
  virtual void connected(const Peer&) {}
  // All transfers over the connection have ended.
  virtual void gone(const Peer&, const Gone&) {}

  // A request announces its payload: where it lands. The token comes back in exactly one of
  // landed() and receive_failed(). nullopt drops the request.
  virtual std::optional<Claim> claim(const Peer&, const wire::Parsed&, [[maybe_unused]] std::uint64_t payload_bytes) {
    return std::nullopt;
  }
  virtual void landed([[maybe_unused]] std::uint64_t token) {}
  virtual void receive_failed([[maybe_unused]] std::uint64_t token) {}
  // A request without a payload.
  virtual void request(const Peer&, const wire::Parsed&) {}
  // A message that answers no request of this node. Every service gets it.
  virtual void notice(const Peer&, const wire::Parsed&) {}
  // A send has ended, perhaps another service's.
  virtual void sent(SendId) {}
  virtual void send_failed(SendId) {}

  // Does what is possible now; false: nothing was.
  virtual bool step() = 0;

  // From now on the service begins nothing. It closes the connections that use its memory.
  virtual void quiesce() = 0;
  // After quiesce(): whether no connection uses its memory any more.
  virtual bool quiesced() const = 0;
};

}  // namespace vmem::rdma
