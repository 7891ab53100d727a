// The interface between vmem and the network: messages between nodes that have authenticated each
// other. A message has a small header and an optional large payload. Every operation is
// asynchronous and has a deadline; no call waits for the network.
//
// A payload is sent from registered memory. It lands in memory that the receiver chooses when the
// message is announced (Receiver::claim). The end of a send means only that its memory may be
// reused: delivery is known from the peer's reply alone.
//
// A peer is one connection. A passed deadline, a broken connection and close() close it by force:
// every operation in flight ends within 150 ms. Then the peer is gone for good; its last event
// gives the reason.
//
// Threads: progress() and idle() belong to one thread, the owner's or a ProgressThread's, which
// also calls Receiver. Any thread may make the other calls; they post and return. Slabs outlive
// the operations on them, and the transport outlives its slabs.
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

#include "base/file_descriptor.hpp"
#include "base/node.hpp"
#include "base/status.hpp"
#include "rdma/transport/progressable.hpp"
#include "rdma/transport/protocol_version.hpp"

namespace vmem::rdma {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;
// Readable once the process has ended; null: unknown.
using ProcessRef = std::shared_ptr<const FileDescriptor>;

// Must be equal on all nodes: a pointer means the same everywhere. A node of no cluster shares no
// addresses: its base and space are 0, and are compared with nobody's.
struct ClusterParameters {
  std::uint64_t base = 0;
  std::uint64_t space_bytes = 0;  // slices follow from it
  std::uint64_t page_bytes = 0;
};

enum class PeerId : std::uint64_t {};  // one connection to a node; never reused. 0: none
enum class SendId : std::uint64_t {};  // 0: none

inline constexpr std::size_t kMostHeaderBytes = 256;
inline constexpr std::size_t kMostSpans = 16;          // per payload
inline constexpr std::size_t kMostOutstanding = 4096;  // sends in flight to one peer

struct Send {
  PeerId peer{};
  ConstBytes header;  // copied by the call
  // The call copies the list. The memory, in slabs, must not change until the send ends.
  std::span<const ConstBytes> payload;
  std::uint64_t deadline_us = 0;  // on the transport's clock
  SendId id{};                    // set by send(). 0: not posted
};

// Memory for sending and receiving payloads; unregistered on destruction.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual Bytes memory() const noexcept = 0;
};

// Destination of a payload: memory in a slab, of exactly the payload's size. The transport owns it
// until the Message or ReceiveFailed with this token.
struct Claim {
  Bytes destination;
  std::uint64_t token = 0;
  std::uint64_t deadline_us = 0;
};

class Receiver {
 public:
  virtual ~Receiver() = default;
  // A message announces its payload. nullopt drops the message without telling the sender.
  virtual std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) = 0;
};

enum class Reason : std::uint8_t {
  closed,   // close() was called here
  left,     // the peer closed the connection
  lost,     // the peer died, or the network cannot reach it
  timeout,  // a deadline passed
  refused,  // by either end: secret, version, parameters, no listener
};
std::string_view reason_name(Reason reason) noexcept;

struct Connected {
  NodeIdentity node;
  bool by_us = false;         // connect() was called on this node
  std::string path;           // transports of the messages: "tcp/lo", "sysv", "rc_mlx5/mlx5_0:1"
  std::string identity = {};  // proved tenant: of the secret or the certificate; "": none
  ProcessRef process = {};    // of a peer on this machine, if the kernel identifies it
  // Channels that carry payloads, and the version that both nodes speak.
  std::uint32_t channels = 1;
  std::uint16_t version = kProtocolVersion;
  // The peer receives payloads that this node sends from GPU memory.
  bool takes_gpu_memory = false;
};
struct Message {
  std::vector<std::byte> header;
  Bytes payload;  // as claimed
  std::uint64_t token = 0;
};
struct ReceiveFailed {  // the claimed memory is no longer written
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
struct Gone {  // last event of the peer, except failures of later sends
  Reason reason = Reason::lost;
  Error error;
};
struct Event {
  PeerId peer{};
  std::variant<Connected, Message, ReceiveFailed, Sent, SendFailed, Gone> what;
};

class Transport : public Progressable {
 public:
  // The address for peers to connect to; "" if this transport does not listen.
  virtual const std::string& address() const noexcept = 0;

  // Slabs may overlap. Errors: INVALID_VALUE for empty memory, those of the transport's library.
  virtual Result<std::unique_ptr<Slab>> register_slab(Bytes memory) = 0;
  // Whether this transport sends from a GPU's memory itself. Then register_gpu_slab() takes such
  // memory: a payload from there is one span, goes only to peers that take it
  // (Connected::takes_gpu_memory), and nothing is received there. Errors of the latter:
  // UNSUPPORTED; as above.
  virtual bool sends_gpu_memory() const noexcept { return false; }
  virtual Result<std::unique_ptr<Slab>> register_gpu_slab(Bytes memory);
  // Ends in Connected or Gone. Errors: the address is malformed or not allowed.
  virtual Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) = 0;
  // Posts in order; messages to one peer may overtake each other. Each posted send ends in Sent or
  // SendFailed. On failure the sends with id 0 were not posted. Errors: INVALID_VALUE for a
  // malformed send, OUT_OF_MEMORY beyond kMostOutstanding.
  virtual Status send(std::span<Send> sends) = 0;
  // Closes by force. No effect if the peer is gone.
  virtual void close(PeerId peer) = 0;

  // Appends the events since the last call.
  virtual void poll(std::vector<Event>& events) = 0;
  // Waits for events, for at most most_us of real time; true if there are any. Not for the
  // progressing thread.
  virtual bool wait(std::uint64_t most_us) = 0;
};

}  // namespace vmem::rdma
