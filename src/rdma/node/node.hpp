// What this process is to other nodes: one transport, the thread that progresses it, and the
// services that talk over it. Between two nodes there is one connection for everything, whichever
// of them made it.
//
// Requests of other nodes go to the service that serves their kind, replies to the call that waits
// for them (Calls). A message whose sender is not the node of its connection goes nowhere.
//
// Thread: the node's own, or the owner's (`own_thread`), for all that does not say "any thread".
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/node/calls.hpp"
#include "rdma/node/links.hpp"
#include "rdma/node/page_calls.hpp"
#include "rdma/node/page_outbox.hpp"
#include "rdma/node/peer_book.hpp"
#include "rdma/node/service.hpp"
#include "rdma/transport/event_batch.hpp"
#include "rdma/transport/progress_thread.hpp"
#include "tiers/async/inbox.hpp"

namespace vmem::rdma {

struct NodeSetup {
  using MakeTransport = std::function<Result<std::unique_ptr<Transport>>(Receiver&)>;

  NodeIdentity self;
  MakeTransport make_transport;
  const Clock* clock = nullptr;  // outlives the node
  LinkTimes times;
  std::uint64_t silence_us = 60'000'000;  // a node that connected and is silent so long is closed
  // False: the owner progresses the transport and steps the node.
  bool own_thread = true;
};

class Node final : public Receiver {
 public:
  // Errors: those of make_transport.
  static Result<std::unique_ptr<Node>> create(NodeSetup setup);
  // REQUIRES: every service was removed.
  ~Node() override;

  // Before start(), or on the node's thread. REQUIRES: no other service serves one of its kinds.
  void add(Service& service);
  // From here on messages arrive.
  void start();
  // Any thread but the node's. Quiesces the service; returns when nothing of it is in flight and it
  // is called no more.
  void remove(Service& service);

  // Any thread.
  Transport& transport() noexcept { return *transport_; }
  const Clock& clock() const noexcept { return *setup_.clock; }
  NodeIdentity self() const noexcept { return setup_.self; }
  void wake() noexcept { transport_->wake(); }

  // The node's thread.
  Calls& calls() noexcept { return *calls_; }
  PageCalls& page_calls() noexcept { return *page_calls_; }
  PageOutbox& outbox() noexcept { return *outbox_; }
  Pings& pings() noexcept { return *pings_; }
  Links& links() noexcept { return *links_; }
  PeerBook& peers() noexcept { return *peers_; }
  // Without own_thread: does what is possible now; false: nothing was. turn() progresses the
  // transport, too.
  bool step();
  bool turn();

  std::optional<Claim> claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) override;

 private:
  explicit Node(NodeSetup setup) : setup_(std::move(setup)) {}
  Status open();

  void handle(Event& event);
  void handle(PeerId peer, const Connected& connected);
  void handle(PeerId peer, const Message& message);
  void handle(PeerId peer, const ReceiveFailed& failed);
  void handle(PeerId peer, const Sent& sent);
  void handle(PeerId peer, const SendFailed& failed);
  void handle(PeerId peer, const Gone& gone);
  void request(const Peer& from, const wire::Parsed& message);
  void pong(const Peer& to, const wire::RequestId& request);
  void close_late();

  Service* server_of(wire::Kind kind) const;
  Status admit(const Connected& connected) const;
  bool let_go();
  Service* owner_of(std::uint64_t token) const;

  const NodeSetup setup_;
  std::unique_ptr<Transport> transport_;
  // Constant after open().
  std::unique_ptr<PeerBook> peers_;
  std::unique_ptr<Calls> calls_;
  std::unique_ptr<Pings> pings_;
  std::unique_ptr<Links> links_;
  std::unique_ptr<PageCalls> page_calls_;
  std::unique_ptr<PageOutbox> outbox_;

  // Only for the node's thread.
  EventBatch events_;
  std::vector<Service*> services_;  // by index; null: removed

  // Services that are to leave; protected by mutex_.
  std::mutex mutex_;
  std::condition_variable left_;
  std::vector<Service*> leaving_;

  std::unique_ptr<ProgressThread> thread_;
};

}  // namespace vmem::rdma
