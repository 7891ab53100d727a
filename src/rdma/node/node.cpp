#include "rdma/node/node.hpp"

#include <algorithm>
#include <utility>

namespace vmem::rdma {

using wire::Kind;

namespace {

constexpr std::uint64_t kQuiesceTurnUs = 1'000;

// A claim's token tells whose it is: a call's, or that of the service with this index, from 1.
constexpr unsigned kOwnerShift = 56;
constexpr std::uint64_t kOwnToken = (std::uint64_t{1} << kOwnerShift) - 1;

}  // namespace

Result<std::unique_ptr<Node>> Node::create(NodeSetup setup) {
  std::unique_ptr<Node> node(new Node(std::move(setup)));
  VMEM_TRY(node->open());
  return node;
}

Status Node::open() {
  VMEM_ASSIGN(transport_, setup_.make_transport(*this));
  peers_ = std::make_unique<PeerBook>(*transport_, *setup_.clock, setup_.silence_us);
  calls_ = std::make_unique<Calls>(*transport_, *peers_, *setup_.clock, setup_.self);
  pings_ = std::make_unique<Pings>(*calls_, *peers_, *setup_.clock, setup_.times.request_us);
  links_ = std::make_unique<Links>(*transport_, *pings_, *setup_.clock, setup_.times);
  page_calls_ = std::make_unique<PageCalls>(*calls_, *setup_.clock);
  outbox_ = std::make_unique<PageOutbox>(*peers_);
  return {};
}

Node::~Node() {
  thread_.reset();
  transport_.reset();  // while claim() can still be called
}

void Node::start() {
  if (setup_.own_thread) thread_ = std::make_unique<ProgressThread>(*transport_, [this] { return step(); });
}

// ---- services ----

void Node::add(Service& service) { services_.push_back(&service); }

void Node::remove(Service& service) {
  {
    const std::lock_guard lock(mutex_);
    leaving_.push_back(&service);
  }
  const auto left = [&] { return std::ranges::find(leaving_, &service) == leaving_.end(); };
  if (thread_) {
    wake();
    std::unique_lock lock(mutex_);
    return left_.wait(lock, left);
  }
  // This is the node's thread.
  (void)let_go();
  while (!left()) {
    if (!turn()) transport_->idle(kQuiesceTurnUs);
  }
}

// Lets go of the services that are to leave, as soon as nothing of theirs is in flight.
bool Node::let_go() {
  const std::lock_guard lock(mutex_);
  return std::erase_if(leaving_, [&](Service* service) {
           service->quiesce();
           if (!service->quiesced() || calls_->any_of(service) || page_calls_->any_of(service)) return false;
           std::ranges::replace(services_, service, static_cast<Service*>(nullptr));
           left_.notify_all();
           return true;
         }) != 0;
}

Service* Node::server_of(Kind kind) const {
  const auto serves = [&](const Service* service) {
    return service != nullptr && std::ranges::find(service->kinds(), kind) != service->kinds().end();
  };
  const auto found = std::ranges::find_if(services_, serves);
  return found == services_.end() ? nullptr : *found;
}

Service* Node::owner_of(std::uint64_t token) const {
  const std::uint64_t owner = token >> kOwnerShift;
  return owner == 0 ? nullptr : services_[owner - 1];
}

Status Node::admit(const Connected& connected) const {
  for (Service* service : services_) {
    if (service != nullptr) VMEM_TRY(service->admit(connected));
  }
  return {};
}

// ---- steps ----

bool Node::turn() {
  const bool did = transport_->progress();
  return step() || did;
}

bool Node::step() {
  bool did = events_.handle_some(*transport_, [&](Event& event) { handle(event); });
  did |= links_->keep_up();
  if (events_.used_up()) close_late();  // an answer may be among those that are left
  peers_->close_silent();
  for (std::size_t i = 0; i < services_.size(); ++i) {
    if (services_[i] != nullptr) did |= services_[i]->step();
  }
  did |= calls_->run_ended();
  did |= page_calls_->step();
  did |= outbox_->step();
  did |= let_go();
  return did;
}

void Node::close_late() {
  calls_->for_late([&](PeerId peer) {
    if (!links_->late(peer)) peers_->close(peer);
  });
}

// ---- events ----

std::optional<Claim> Node::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  const Peer* const from = peers_->find(peer);
  const auto message = wire::parse(header, peers_->version(peer));
  if (!message || from == nullptr) {
    peers_->reject();
    return std::nullopt;
  }
  if (wire::is_reply(message->header.kind)) return calls_->claim(peer, *message, payload_bytes);
  Service* const server = server_of(message->header.kind);
  if (server == nullptr) {
    peers_->reject();
    return std::nullopt;
  }
  if (!peers_->is_from(*from, message->header)) return std::nullopt;
  auto claim = server->claim(*from, *message, payload_bytes);
  if (!claim) return std::nullopt;
  const auto index = static_cast<std::uint64_t>(std::ranges::find(services_, server) - services_.begin());
  claim->token |= (index + 1) << kOwnerShift;
  return claim;
}

void Node::handle(Event& event) {
  std::visit([&](auto& what) { handle(event.peer, what); }, event.what);
  calls_->run_ended();
}

void Node::handle(PeerId peer, const Connected& connected) {
  const Peer* const accepted = peers_->connected(peer, connected, [&](const Connected& each) { return admit(each); });
  if (accepted == nullptr) return;
  for (Service* service : services_) {
    if (service != nullptr) service->connected(*accepted);
  }
  links_->connected(peer, connected);
}

void Node::handle(PeerId peer, const Message& message) {
  if (message.token != 0) {
    peers_->heard(peer);
    if (message.token <= kOwnToken) return calls_->landed(message.token);
    if (Service* const owner = owner_of(message.token)) owner->landed(message.token & kOwnToken);
    return;
  }
  const Peer* const from = peers_->find(peer);
  const auto parsed = wire::parse(message.header, peers_->version(peer));
  if (!parsed || from == nullptr) return peers_->reject();
  if (!wire::is_reply(parsed->header.kind)) return request(*from, *parsed);
  peers_->heard(peer);
  if (parsed->header.request.sequence != wire::kUnasked) return calls_->answered(peer, *parsed);
  for (Service* service : services_) {
    if (service != nullptr) service->notice(*from, *parsed);
  }
}

void Node::request(const Peer& from, const wire::Parsed& message) {
  if (!peers_->is_from(from, message.header)) return;
  if (message.header.kind == Kind::ping) return pong(from, message.header.request);
  Service* const server = server_of(message.header.kind);
  server != nullptr ? server->request(from, message) : peers_->reject();
}

// A pong that cannot be sent is missed by the other node, which then connects again.
void Node::pong(const Peer& to, const wire::RequestId& request) {
  const auto header = wire::write({.version = to.version, .kind = Kind::pong, .request = request});
  if (!header) return;
  Send send{.peer = to.id, .header = *header, .deadline_us = setup_.clock->now_us() + setup_.times.request_us};
  (void)transport_->send({&send, 1});
}

void Node::handle(PeerId, const ReceiveFailed& failed) {
  if (failed.token <= kOwnToken) return calls_->receive_failed(failed.token);
  if (Service* const owner = owner_of(failed.token)) owner->receive_failed(failed.token & kOwnToken);
}

void Node::handle(PeerId, const Sent& sent) {
  calls_->sent(sent.id);
  outbox_->ended(sent.id);
  for (Service* service : services_) {
    if (service != nullptr) service->sent(sent.id);
  }
}

void Node::handle(PeerId, const SendFailed& failed) {
  calls_->send_failed(failed.id);
  outbox_->ended(failed.id);
  for (Service* service : services_) {
    if (service != nullptr) service->send_failed(failed.id);
  }
}

void Node::handle(PeerId peer, const Gone& gone) {
  const auto was = peers_->gone(peer, gone);
  calls_->break_all(peer);
  page_calls_->break_all(peer);
  outbox_->gone(peer);
  links_->gone(peer, gone);
  if (!was) return;
  for (Service* service : services_) {
    if (service != nullptr) service->gone(*was, gone);
  }
}

}  // namespace vmem::rdma
