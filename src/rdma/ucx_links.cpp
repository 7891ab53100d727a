// How a UcxTransport's links come and go.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "rdma/ucx_keys.hpp"
#include "rdma/ucx_transport.hpp"

namespace vmem::rdma {
namespace {

// How often one link's worker is progressed before another's is.
constexpr int kWorkerTurns = 32;

Error lost(std::string why, int native = 0) { return {VMEM_ERROR_LOST, native, std::move(why)}; }

// The last byte on a link's socket: why this node closes it.
std::byte farewell_of(Reason reason) { return static_cast<std::byte>(reason); }
std::string_view farewell_words(std::byte farewell) {
  return farewell == farewell_of(Reason::timeout) ? "a deadline passed there" : "it closed the connection";
}

}  // namespace

UcxLink* UcxTransport::find(PeerId peer) {
  const auto link = links_.find(peer);
  return link == links_.end() ? nullptr : link->second.get();
}

Result<Entrance> UcxTransport::open_entrance() const {
  VMEM_ASSIGN(UcxWorkerRef worker, UcxWorker::create(context_));
  VMEM_ASSIGN(std::vector<std::byte> endpoint, worker->address());
  return Entrance{std::move(endpoint), std::move(worker)};
}

bool UcxTransport::progress_workers() {
  bool did = false;
  for (auto& [peer, link] : links_) {
    for (int turn = 0; link->worker && !link->failure && turn < kWorkerTurns && link->worker->progress(); ++turn)
      did = true;
  }
  return did;
}

// Whether their descriptors will tell of all that comes.
bool UcxTransport::arm_workers() {
  return std::ranges::all_of(links_, [](auto& link) { return !link.second->worker || link.second->worker->arm(); });
}

bool UcxTransport::check_sockets() {
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  bool did = false;
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t key = events[i].data.u64;
    std::uint64_t count = 0;
    if (key == kWakeupKey) (void)!::read(wakeup_.get(), &count, sizeof(count));
    if (UcxLink* link = find(PeerId{key})) {
      read_socket(*link);
      did = true;
    }
  }
  return advance_lobby() || did;
}

bool UcxTransport::advance_lobby() {
  const bool did = lobby_->progress(outcomes_);
  for (Lobby::Outcome& outcome : outcomes_) admit(std::move(outcome));
  outcomes_.clear();
  return did;
}

void UcxTransport::admit(Lobby::Outcome outcome) {
  if (outcome.key != 0) {
    UcxLink* link = find(PeerId{outcome.key});
    if (link == nullptr || link->failure) return;
    if (!outcome.acquaintance) {
      outcome.error.message = fmt::format("no connection to {}: {}", outcome.address, outcome.error.message);
      return fail_link(*link, outcome.reason, std::move(outcome.error));
    }
    return establish(*link, std::move(outcome));
  }
  if (!outcome.acquaintance) {
    VMEM_LOG_WARN("a connection from {} was refused: {}", outcome.address, outcome.error.message);
    return;
  }
  auto owned = std::make_unique<UcxLink>();
  UcxLink& link = *owned;
  link.transport = this;
  {
    const std::lock_guard lock(mutex_);
    link.peer = PeerId{++last_peer_};
    outstanding_.emplace(link.peer, 0);
  }
  link.deadline_us = config_.clock->now_us() + config_.handshake_us;
  link.address = outcome.address;
  deadlines_.add(link.deadline_us, link.peer);
  links_.emplace(link.peer, std::move(owned));
  establish(link, std::move(outcome));
}

// The initiator greets, the responder answers: so neither's greeting comes before the other knows the link.
void UcxTransport::establish(UcxLink& link, Lobby::Outcome outcome) {
  link.socket = std::move(outcome.socket);
  link.acquaintance = *std::move(outcome.acquaintance);
  if (auto watched = watch(link.socket.get(), static_cast<std::uint64_t>(link.peer)); !watched)
    return fail_link(link, Reason::lost, std::move(watched).error());
  if (const auto opened = open_worker(link); !opened) {
    return fail_link(
        link, Reason::refused,
        lost(fmt::format("node {} at {} cannot be reached: {}; both need a transport of UCX in common (UCX_TLS)",
                         static_cast<std::uint64_t>(link.acquaintance.peer.node.id), link.address,
                         opened.error().message)));
  }
  if (link.by_us) greet(link);
}

Status UcxTransport::open_worker(UcxLink& link) {
  link.worker = std::static_pointer_cast<UcxWorker>(std::move(link.acquaintance.entrance));
  VMEM_TRY(link.worker->on_message(&on_message, &link));
  VMEM_TRY(watch(link.worker->descriptor(), kWorkerKey));
  VMEM_ASSIGN(link.endpoint,
              UcxEndpoint::create(link.worker, link.acquaintance.peer.endpoint, &on_endpoint_error, &link));
  return {};
}

void UcxTransport::on_endpoint_error(void* arg, ucp_ep_h, ucs_status_t status) {
  auto& link = *static_cast<UcxLink*>(arg);
  link.transport->lose_link(link, status);
}

void UcxTransport::greet(UcxLink& link) {
  auto greeting = std::make_unique<UcxSend>();
  UcxSend& send = *greeting;
  send.transport = this;
  send.link = &link;
  send.peer = link.peer;
  send.kind = EnvelopeKind::hello;
  send.deadline_us = link.deadline_us;
  deadlines_.add(send.deadline_us, link.peer);
  link.sends.emplace(&send, std::move(greeting));
  start_send(send);
}

void UcxTransport::on_connected(UcxLink& link) {
  link.connected = true;
  deadlines_.remove(link.deadline_us, link.peer);
  if (!link.by_us) greet(link);
  events_.push({link.peer, Connected{link.acquaintance.peer.node, link.by_us, link.endpoint.path()}});
  for (UcxSend* send : std::exchange(link.held, {})) start_send(*send);
}

void UcxTransport::read_socket(UcxLink& link) {
  std::byte farewell{};
  const ssize_t got = ::recv(link.socket.get(), &farewell, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got == 1)
    return fail_link(link, Reason::left, lost(fmt::format("{} left: {}", link.address, farewell_words(farewell))));
  fail_link(link, Reason::lost,
            lost(fmt::format("{} is lost: {}", link.address, got == 0 ? "its process ended" : std::strerror(errno)),
                 got == 0 ? 0 : errno));
}

void UcxTransport::fail_link(UcxLink& link, Reason reason, Error error) {
  if (link.failure) return;
  link.failure = UcxFailure{reason, std::move(error)};
  failed_.push_back(&link);
}

// What UCX says of its connection; if the peer said on the socket why it went, that is why.
void UcxTransport::lose_link(UcxLink& link, ucs_status_t status) {
  if (link.failure) return;
  if (link.socket) read_socket(link);
  fail_link(link, Reason::lost,
            lost(fmt::format("{} is lost: {}", link.address, context_->ucx().words(status)), status));
}

void UcxTransport::end_link(UcxLink& link) {
  lobby_->cancel(static_cast<std::uint64_t>(link.peer));
  if (link.socket) {
    const std::byte farewell = farewell_of(link.failure->reason);
    (void)!::send(link.socket.get(), &farewell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    link.socket.reset();
  }
  if (!link.connected) deadlines_.remove(link.deadline_us, link.peer);
  end_worker(link);
  // What UCX did not end itself it knows nothing of any more.
  while (!link.sends.empty()) end_send(*link.sends.begin()->second, UCS_ERR_CANCELED);
  while (!link.receives.empty()) end_receive(*link.receives.begin()->second, UCS_ERR_CANCELED);
}

// Without progress in between: it would serve the connections that a forced close leaves.
void UcxTransport::end_worker(UcxLink& link) {
  if (!link.worker) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.worker->descriptor(), nullptr);
  link.endpoint = {};
  link.worker.reset();
}

bool UcxTransport::settle() {
  const bool did = !failed_.empty();
  for (UcxLink* link : std::exchange(failed_, {})) {
    end_link(*link);
    {
      const std::lock_guard lock(mutex_);
      outstanding_.erase(link->peer);
    }
    events_.push({link->peer, Gone{link->failure->reason, std::move(link->failure->error)}});
    links_.erase(link->peer);
  }
  return did;
}

bool UcxTransport::expire() {
  const std::uint64_t now = config_.clock->now_us();
  if (!deadlines_.expired(now)) return false;
  bool did = false;
  deadlines_.for_expired(now, [&](PeerId peer) {
    UcxLink& link = *find(peer);
    if (link.failure) return;
    did = true;
    fail_link(link, Reason::timeout,
              {VMEM_ERROR_TIMEOUT, 0,
               fmt::format("{} did not {} before the deadline", link.address, link.connected ? "answer" : "connect")});
  });
  return did;
}

}  // namespace vmem::rdma
