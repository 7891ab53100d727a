// What is kept of one peer's messages. A peer is reached over one or several channels, each a UCX worker with an endpoint, which one
// UcxLoop progresses: all of a UcxChannel belongs to that loop's thread.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/envelope.hpp"
#include "rdma/ucx.hpp"
#include "rdma/ucx_exchange.hpp"
#include "rdma/ucx_handles.hpp"

namespace vmem::rdma {

class UcxLoop;
struct UcxChannel;

struct UcxFailure {
  Reason reason = Reason::lost;
  Error error;
};

// What all threads know of a peer.
struct UcxPeer {
  PeerId id{};
  bool by_us = false;
  std::string address;
  std::string identity;  // that it proved; set before it is connected, as is
  std::atomic<std::uint32_t> channels = 0;
  std::atomic<std::size_t> outstanding = 0;                           // sends
  ProcessRef process;                                                 // of a peer over a Unix socket
  std::array<std::atomic<std::uint64_t>, kMostChannels> under_way{};  // bytes to be sent, by channel
  std::mutex mutex;
  std::atomic<bool> connected = false;  // written with mutex held, after the event
  bool over = false;                    // protected by mutex: no loop gets anything of it after its end
};
using UcxPeerRef = std::shared_ptr<UcxPeer>;

struct UcxSend {
  UcxPeerRef peer;
  std::uint32_t index = 0;  // of the channel
  UcxChannel* channel = nullptr;
  SendId id{};  // 0: a greeting of the transport's own, of which nobody is told
  EnvelopeKind kind = EnvelopeKind::message;
  std::uint64_t deadline_us = 0;
  std::vector<std::byte> header;  // sealed when it starts; UCX reads it until the send is over
  std::vector<ucp_dt_iov_t> spans;
  std::uint64_t payload_bytes = 0;
  ucp_mem_h memory = nullptr;  // of the only span
};

struct UcxReceive {
  UcxChannel* channel = nullptr;
  Claim claim;
  std::vector<std::byte> header;
};

struct UcxChannel {
  UcxLoop* loop = nullptr;
  UcxPeerRef peer;
  std::uint32_t index = 0;
  std::uint64_t greet_us = 0;  // the deadline of greetings
  std::shared_ptr<const UcxAcquaintance> acquaintance;
  UcxWorkerRef worker;
  UcxEndpoint endpoint;
  FileDescriptor socket;       // the link's, while UCX may connect yet; says nothing unless either side leaves
  bool greeted = false;        // the peer was
  bool failed = false;         // no more is sent, taken or progressed; what is under way waits for the end
  std::uint64_t sequence = 0;  // of what was sent
  SequenceWindow received;
  std::unordered_map<UcxSend*, std::unique_ptr<UcxSend>> sends;
  std::unordered_map<UcxReceive*, std::unique_ptr<UcxReceive>> receives;
  std::unordered_set<void*> announced;  // payloads that UCX keeps until it is told where to

  // Messages of another channel are none of this one's.
  std::uint64_t our_link() const noexcept { return acquaintance->our_link + index; }
  std::uint64_t their_link() const noexcept { return acquaintance->their_link + index; }
};

}  // namespace vmem::rdma
