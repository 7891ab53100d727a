// What a UcxTransport keeps of one peer and of what is under way with it. All of it belongs to the thread that progresses.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/envelope.hpp"
#include "rdma/handshake.hpp"
#include "rdma/ucx_handles.hpp"

namespace vmem::rdma {

class UcxTransport;
struct UcxLink;

struct UcxSend {
  UcxTransport* transport = nullptr;
  UcxLink* link = nullptr;
  PeerId peer{};
  SendId id{};  // 0: a greeting of the transport's own, of which nobody is told
  EnvelopeKind kind = EnvelopeKind::message;
  std::uint64_t deadline_us = 0;
  std::vector<std::byte> header;  // sealed when it starts; UCX reads it until the send is over
  std::vector<ucp_dt_iov_t> spans;
  ucp_mem_h memory = nullptr;  // of the only span
  bool started = false;        // UCX has it
};

struct UcxReceive {
  UcxTransport* transport = nullptr;
  UcxLink* link = nullptr;
  Claim claim;
  std::vector<std::byte> header;
};

struct UcxFailure {
  Reason reason = Reason::lost;
  Error error;
};

struct UcxLink {
  UcxTransport* transport = nullptr;
  PeerId peer{};
  bool by_us = false;
  bool connected = false;
  std::uint64_t deadline_us = 0;  // for being connected
  std::string address;
  std::optional<UcxFailure> failure;
  FileDescriptor socket;  // the handshake's: what dies with the other process
  Acquaintance acquaintance;
  std::uint64_t sequence = 0;  // of what was sent
  SequenceWindow received;
  UcxWorkerRef worker;
  UcxEndpoint endpoint;
  std::unordered_map<UcxSend*, std::unique_ptr<UcxSend>> sends;
  std::unordered_map<UcxReceive*, std::unique_ptr<UcxReceive>> receives;
  std::vector<UcxSend*> held;  // of sends: until it is connected
};

}  // namespace vmem::rdma
