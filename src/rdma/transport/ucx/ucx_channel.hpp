// State of one peer's messages. A peer has one or several channels, each a UCX worker with an
// endpoint. One UcxLoop progresses a UcxChannel; all of it belongs to that loop's thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/transport/ucx/envelope.hpp"
#include "rdma/transport/ucx/ucx.hpp"
#include "rdma/transport/ucx/ucx_exchange.hpp"
#include "rdma/transport/ucx/ucx_handles.hpp"

namespace vmem::rdma {

class UcxLoop;
struct UcxChannel;

struct UcxFailure {
  Reason reason = Reason::lost;
  Error error;
};

// State of a peer shared by all threads.
struct UcxPeer {
  PeerId id{};
  bool by_us = false;
  std::string address;
  std::string identity;  // proved; set, like channels, before the peer connects
  std::atomic<std::uint32_t> channels = 0;
  std::uint16_t version = kProtocolVersion;                           // set like identity
  bool takes_gpu_memory = false;                                      // set like identity
  std::atomic<std::size_t> outstanding = 0;                           // sends
  ProcessRef process;                                                 // over Unix sockets only
  std::array<std::atomic<std::uint64_t>, kMostChannels> under_way{};  // bytes to send, by channel
  std::mutex mutex;
  std::atomic<bool> connected = false;  // written with mutex held, after the event
  bool over = false;                    // protected by mutex; once true, no send is dispatched
};
using UcxPeerRef = std::shared_ptr<UcxPeer>;

struct UcxSend {
  UcxPeerRef peer;
  std::uint32_t index = 0;  // of the channel
  UcxChannel* channel = nullptr;
  SendId id{};  // 0: the transport's own greeting, without an event
  EnvelopeKind kind = EnvelopeKind::message;
  std::uint64_t deadline_us = 0;
  std::vector<std::byte> header;  // sealed when the send starts; UCX reads it until the send ends
  std::vector<ucp_dt_iov_t> spans;
  std::uint64_t payload_bytes = 0;
  std::shared_ptr<UcxMemory> memory;  // of the only span
};

struct UcxReceive {
  UcxChannel* channel = nullptr;
  Claim claim;
  std::vector<std::byte> header;
  std::shared_ptr<UcxMemory> memory;  // of the destination, if it is registered
};

struct UcxChannel {
  UcxLoop* loop = nullptr;
  UcxPeerRef peer;
  std::uint32_t index = 0;
  std::uint64_t greet_us = 0;  // deadline of greetings
  std::shared_ptr<const UcxAcquaintance> acquaintance;
  UcxWorkerRef worker;
  UcxEndpoint endpoint;
  // The link's, while UCX may still be connecting; silent until a side leaves.
  FileDescriptor socket;
  bool greeted = false;        // a greeting was sent
  bool failed = false;         // no send, receive or progress; operations in flight wait for UcxEnd
  std::uint64_t sequence = 0;  // of the last message sent
  SequenceWindow received;
  std::unordered_map<UcxSend*, std::unique_ptr<UcxSend>> sends;
  std::unordered_map<UcxReceive*, std::unique_ptr<UcxReceive>> receives;
  std::unordered_set<void*> announced;  // payloads that UCX keeps until they are taken or refused

  // Link ids differ by channel: a message for another channel is rejected.
  std::uint64_t our_link() const noexcept { return acquaintance->our_link + index; }
  std::uint64_t their_link() const noexcept { return acquaintance->their_link + index; }
};

}  // namespace vmem::rdma
