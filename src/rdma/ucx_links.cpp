// How a UcxTransport's links come and go.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "rdma/farewell.hpp"
#include "rdma/ucx_keys.hpp"
#include "rdma/ucx_transport.hpp"

namespace vmem::rdma {
namespace {

Error lost(std::string why, int native = 0) { return {VMEM_ERROR_LOST, native, std::move(why)}; }

using ChannelWorkers = std::vector<UcxWorkerRef>;

// What a handshake carries: each with its size before it.
std::vector<std::byte> write_addresses(const std::vector<std::vector<std::byte>>& addresses) {
  std::vector<std::byte> bytes;
  for (const std::vector<std::byte>& address : addresses) {
    const auto size = static_cast<std::uint32_t>(address.size());
    const auto before = std::as_bytes(std::span(&size, 1));
    bytes.insert(bytes.end(), before.begin(), before.end());
    bytes.insert(bytes.end(), address.begin(), address.end());
  }
  return bytes;
}
// nullopt: what the peer sent is none.
std::optional<std::vector<std::vector<std::byte>>> read_addresses(ConstBytes bytes) {
  std::vector<std::vector<std::byte>> addresses;
  while (!bytes.empty()) {
    std::uint32_t size = 0;
    if (bytes.size() < sizeof(size)) return std::nullopt;
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes = bytes.subspan(sizeof(size));
    if (size == 0 || size > bytes.size()) return std::nullopt;
    addresses.emplace_back(bytes.begin(), bytes.begin() + size);
    bytes = bytes.subspan(size);
  }
  if (addresses.empty()) return std::nullopt;
  return addresses;
}

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

// A worker for each channel there may be.
Result<Entrance> UcxTransport::open_entrance() const {
  auto workers = std::make_shared<ChannelWorkers>();
  std::vector<std::vector<std::byte>> addresses;
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    VMEM_ASSIGN(UcxWorkerRef worker, UcxWorker::create(context_));
    VMEM_ASSIGN(std::vector<std::byte> address, worker->address());
    workers->push_back(std::move(worker));
    addresses.push_back(std::move(address));
  }
  return Entrance{write_addresses(addresses), std::move(workers)};
}

bool UcxTransport::check_sockets() {
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  bool did = false;
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (UcxLink* link = find(PeerId{key})) {
      if (!link->leaving) {
        read_socket(*link);
      } else if (has_left(link->socket)) {
        end_leaving(*link);
      }
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
    if (outcome.reason != Reason::closed)
      VMEM_LOG_WARN("a connection from {} was refused: {}", outcome.address, outcome.error.message);
    return;
  }
  auto owned = std::make_unique<UcxLink>();
  UcxLink& link = *owned;
  link.peer = add_peer(outcome.address, false);
  link.deadline_us = config_.clock->now_us() + config_.handshake_us;
  deadlines_.add(link.deadline_us, link.peer->id);
  links_.emplace(link.peer->id, std::move(owned));
  establish(link, std::move(outcome));
}

// The initiator greets, on its first channel, and the responder answers: so neither's greeting comes before the other knows the link.
void UcxTransport::establish(UcxLink& link, Lobby::Outcome outcome) {
  link.socket = std::move(outcome.socket);
  link.entrance = std::move(outcome.acquaintance->entrance);
  auto& workers = *std::static_pointer_cast<ChannelWorkers>(link.entrance);
  const auto acquaintance = std::make_shared<const Acquaintance>(*std::move(outcome.acquaintance));
  if (auto watched = watch(link.socket.get(), static_cast<std::uint64_t>(link.peer->id)); !watched)
    return fail_link(link, Reason::lost, std::move(watched).error());
  auto addresses = read_addresses(acquaintance->peer.endpoint);
  if (!addresses)
    return fail_link(link, Reason::refused,
                     lost(fmt::format("{} sent no address of UCX; run the same release on both", link.peer->address)));
  link.channels = static_cast<std::uint32_t>(std::min(workers.size(), addresses->size()));
  link.peer->channels.store(link.channels, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < link.channels; ++i) {
    FileDescriptor socket(::fcntl(link.socket.get(), F_DUPFD_CLOEXEC, 0));
    if (!socket) {
      link.channels = i;
      return fail_link(link, Reason::lost, lost(fmt::format("a descriptor: {}", std::strerror(errno)), errno));
    }
    auto channel = std::make_unique<UcxChannel>();
    channel->peer = link.peer;
    channel->index = i;
    channel->greet_us = link.deadline_us;
    channel->acquaintance = acquaintance;
    channel->worker = std::move(workers[i]);
    loops_[i]->post(
        UcxOpen{std::move(channel), std::move((*addresses)[i]), link.peer->by_us && i == 0, std::move(socket)});
  }
  link.entrance.reset();
}

// ---- what loops report ----

void UcxTransport::handle(const UcxConnected& connected) {
  UcxLink* const link = find(connected.peer);
  if (link == nullptr || link->failure) return;
  link->connected = true;
  deadlines_.remove(link->deadline_us, connected.peer);
  for (std::unique_ptr<UcxSend>& send : std::exchange(link->held, {})) {
    deadlines_.remove(send->deadline_us, connected.peer);
    dispatch(std::move(send));
  }
}

// Of a link that failed it is dropped with its channel.
void UcxTransport::handle(UcxAnnounced announced) {
  UcxLink* const link = find(announced.peer);
  if (link == nullptr || link->failure) return;
  const std::uint64_t bytes = announced.payload_bytes;
  UcxLoop& loop = *loops_[announced.index];
  const std::optional<Claim> claim = config_.receiver->claim(announced.peer, announced.header, bytes);
  const bool fits = claim && claim->destination.size() == bytes;
  if (claim && !fits) {
    VMEM_LOG_ERROR("{} bytes were claimed for a payload of {}", claim->destination.size(), bytes);
    tell({announced.peer, ReceiveFailed{claim->token, {VMEM_ERROR_INTERNAL, 0, "claimed with another size"}}});
  }
  if (announced.descriptor != nullptr) {
    if (!fits) return loop.post(UcxRefuse{announced.peer, announced.descriptor});
    return loop.post(UcxTake{announced.peer, announced.descriptor, std::move(announced.header), *claim});
  }
  if (!fits) return;
  std::memcpy(claim->destination.data(), announced.payload.data(), bytes);
  tell({announced.peer, Message{std::move(announced.header), claim->destination, claim->token}});
}

// What UCX says of its connections; if the peer said on the socket why it went, that is why.
void UcxTransport::handle(UcxFailed failed) {
  UcxLink* const link = find(failed.peer);
  if (link == nullptr) return;
  if (failed.failure.reason == Reason::lost && !link->failure && link->socket) read_socket(*link);
  fail_link(*link, failed.failure.reason, std::move(failed.failure.error));
}

void UcxTransport::handle(const UcxStopped& stopped) {
  UcxLink& link = *find(stopped.peer);
  if (--link.running == 0) leave(link);
}

void UcxTransport::handle(const UcxEnded& ended) {
  UcxLink& link = *find(ended.peer);
  if (--link.channels == 0) forget(link);
}

// ---- how they end ----

void UcxTransport::read_socket(UcxLink& link) {
  std::byte farewell{};
  // It stays there: loops that connect look for it, too.
  const ssize_t got = ::recv(link.socket.get(), &farewell, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got == 1)
    return fail_link(link, Reason::left,
                     lost(fmt::format("{} left: {}", link.peer->address, farewell_words(farewell))));
  fail_link(
      link, Reason::lost,
      lost(fmt::format("{} is lost: {}", link.peer->address, got == 0 ? "its process ended" : std::strerror(errno)),
           got == 0 ? 0 : errno));
}

void UcxTransport::fail_link(UcxLink& link, Reason reason, Error error) {
  if (link.failure) return;
  link.failure = UcxFailure{reason, std::move(error)};
  failed_.push_back(&link);
}

void UcxTransport::stop_link(UcxLink& link) {
  const PeerId peer = link.peer->id;
  lobby_->cancel(static_cast<std::uint64_t>(peer));
  {
    const std::lock_guard lock(link.peer->mutex);
    link.peer->over = true;
  }
  if (!link.connected) deadlines_.remove(link.deadline_us, peer);
  for (const std::unique_ptr<UcxSend>& send : std::exchange(link.held, {})) {
    deadlines_.remove(send->deadline_us, peer);
    fail_unsent(*send, *link.failure);
  }
  link.running = link.channels;
  for (std::uint32_t i = 0; i < link.channels; ++i) loops_[i]->post(UcxStop{peer});
  if (link.channels == 0) leave(link);
}

// Neither side closes anything of UCX while the other may be in the midst of connecting to it: see UcxLoop::may_progress.
void UcxTransport::leave(UcxLink& link) {
  if (!link.socket) return left_.push_back(&link);
  const std::byte farewell = farewell_of(link.failure->reason);
  (void)!::send(link.socket.get(), &farewell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)::shutdown(link.socket.get(), SHUT_WR);
  link.leaving = true;
  link.deadline_us = config_.clock->now_us() + kFarewellUs;
  deadlines_.add(link.deadline_us, link.peer->id);
  // One that was connected and is silent is in the midst of nothing.
  const bool silent = link.connected && link.failure->reason == Reason::timeout;
  if (silent || has_left(link.socket)) end_leaving(link);
}

void UcxTransport::end_leaving(UcxLink& link) {
  if (std::exchange(link.leaving, false)) left_.push_back(&link);
}

void UcxTransport::end_link(UcxLink& link) {
  const PeerId peer = link.peer->id;
  if (link.socket) {
    deadlines_.remove(link.deadline_us, peer);
    // A forked process may have it too, and then closing it ends nothing.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.socket.get(), nullptr);
    (void)::shutdown(link.socket.get(), SHUT_RDWR);
    link.socket.reset();
  }
  for (std::uint32_t i = 0; i < link.channels; ++i) loops_[i]->post(UcxEnd{peer, *link.failure});
  if (link.channels == 0) forget(link);
}

void UcxTransport::forget(UcxLink& link) {
  const PeerId peer = link.peer->id;
  {
    const std::lock_guard lock(mutex_);
    peers_.erase(peer);
  }
  tell({peer, Gone{link.failure->reason, std::move(link.failure->error)}});
  links_.erase(peer);
}

bool UcxTransport::settle() {
  const bool did = !failed_.empty() || !left_.empty();
  for (UcxLink* link : std::exchange(failed_, {})) stop_link(*link);
  for (UcxLink* link : std::exchange(left_, {})) end_link(*link);
  return did;
}

bool UcxTransport::expire() {
  const std::uint64_t now = config_.clock->now_us();
  if (!deadlines_.expired(now)) return false;
  bool did = false;
  deadlines_.for_expired(now, [&](PeerId peer) {
    UcxLink& link = *find(peer);
    if (link.failure && !link.leaving) return;
    did = true;
    if (link.leaving) return end_leaving(link);
    fail_link(link, Reason::timeout,
              {VMEM_ERROR_TIMEOUT, 0, fmt::format("{} did not connect before the deadline", link.peer->address)});
  });
  return did;
}

}  // namespace vmem::rdma
