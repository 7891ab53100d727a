// The seam between vmem and the network: messages with a small header and, if there is one, a large payload, between nodes that
// have proved to each other who they are. Every operation is asynchronous and has a deadline; no call waits for the network.
//
// A payload is sent from memory registered beforehand, and lands in memory that the receiver chooses when the message announces
// itself (Receiver::claim). That a send is over says that its memory may be used again. What became of the message, only the
// peer's answer says.
//
// A peer is one connection. When a deadline passes, when the connection breaks and when close() is called, it is closed by
// force: all that was under way ends within 150 ms, and then the peer is gone for good. Its last event says why.
//
// Threads: progress() and idle() belong to one thread, the owner's or a ProgressThread's; Receiver is called from there. All other
// calls are for any thread, post and return. Slabs outlive the operations on them, and the transport outlives its slabs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "rdma/dead_nodes.hpp"
#include "rdma/progressable.hpp"

namespace vmem::rdma {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// What has to be equal on all nodes: a pointer means the same everywhere.
struct ClusterParameters {
  std::uint64_t base = 0;
  std::uint64_t space_bytes = 0;
  std::uint64_t page_bytes = 0;
};

enum class PeerId : std::uint64_t {};  // one connection to a node; never used again. 0: none
enum class SendId : std::uint64_t {};  // 0: none

inline constexpr std::size_t kMostHeaderBytes = 256;
inline constexpr std::size_t kMostSpans = 16;          // of one payload
inline constexpr std::size_t kMostOutstanding = 4096;  // sends to one peer

struct Send {
  PeerId peer{};
  ConstBytes header;  // copied by the call
  std::span<const ConstBytes>
      payload;                    // the list is copied; the memory, in slabs, stays as it is until the send is over
  std::uint64_t deadline_us = 0;  // on the transport's clock
  SendId id{};                    // answered by send(). 0: not posted
};

// Memory that payloads are sent from and received into; unregistered when it ends.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual Bytes memory() const noexcept = 0;
};

// Where a payload goes: memory in a slab, of the payload's size, that is the transport's until the Message or the ReceiveFailed
// with this token.
struct Claim {
  Bytes destination;
  std::uint64_t token = 0;
  std::uint64_t deadline_us = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // A message announces its payload. nullopt refuses it: it is dropped, and the sender is not told.
  virtual std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) = 0;
};

enum class Reason : std::uint8_t {
  closed,   // close() was called here
  left,     // the peer closed the connection
  lost,     // the peer died, or the network says that it cannot be reached
  timeout,  // a deadline passed
  refused,  // one of the two did not accept the other: secret, version, parameters, no listener
};
std::string_view reason_name(Reason reason) noexcept;

struct Connected {
  NodeIdentity node;
  bool by_us = false;         // connect() was called here
  std::string path;           // what carries the messages: "tcp/lo", "sysv", "rc_mlx5/mlx5_0:1"
  std::string identity = {};  // that it proved: the tenant of its secret, or in its certificate; "" without them
  ProcessRef process = {};    // of a peer on this machine, where the kernel says which it is
};
struct Message {
  std::vector<std::byte> header;
  Bytes payload;  // as claimed
  std::uint64_t token = 0;
};
struct ReceiveFailed {  // nothing writes to the claimed memory any more
  std::uint64_t token = 0;
  Error error;
};
struct Sent {
  SendId id{};
};
struct SendFailed {
  SendId id{};
  Reason reason = Reason::lost;
  Error error;
};
struct Gone {  // the peer's last event, but for sends that are posted later, which fail
  Reason reason = Reason::lost;
  Error error;
};
struct Event {
  PeerId peer{};
  std::variant<Connected, Message, ReceiveFailed, Sent, SendFailed, Gone> what;
};

class Transport : public Progressable {
 public:
  // What peers connect to; "" if nobody can.
  virtual const std::string& address() const noexcept = 0;

  virtual Result<std::unique_ptr<Slab>> register_slab(Bytes memory) = 0;
  // Ends in Connected or Gone. Errors: the address cannot be one, or may not be used.
  virtual Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) = 0;
  // Posts in order; messages to one peer may overtake each other. Each posted send ends in Sent or SendFailed. On failure those
  // with id 0 were not posted. Errors: INVALID_VALUE for a send that cannot be, OUT_OF_MEMORY past kMostOutstanding.
  virtual Status send(std::span<Send> sends) = 0;
  // By force. Of a peer that is gone, nothing.
  virtual void close(PeerId peer) = 0;

  // Appends the events since the last call.
  virtual void poll(std::vector<Event>& events) = 0;
  // Until there are events, or most_us of real time have passed; whether there are. Not for the thread that progresses.
  virtual bool wait(std::uint64_t most_us) = 0;
};

}  // namespace vmem::rdma
