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
#include "rdma/stream/local_socket.hpp"
#include "rdma/ucx_keys.hpp"
#include "rdma/ucx_transport.hpp"

namespace vmem::rdma {
namespace {

Error lost(std::string why, int native = 0) { return {VMEM_ERROR_LOST, native, std::move(why)}; }

constexpr std::uint64_t kRefreshUs = 1'000'000;  // how often files with secrets are looked at

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
Status UcxTransport::open_workers(UcxLink& link) const {
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    VMEM_ASSIGN(UcxWorkerRef worker, UcxWorker::create(context_));
    VMEM_ASSIGN(UcxAddress address, worker->address());
    link.workers.push_back(std::move(worker));
    link.introduction.addresses.push_back(std::move(address));
  }
  return {};
}

bool UcxTransport::check_sockets() {
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  bool did = false;
  for (int i = 0; i < ready; ++i) {
    const std::uint64_t key = events[i].data.u64;
    if (UcxLink* link = find(PeerId{key})) {
      if (link->exchange) {
        advance_exchange(*link);
      } else if (!link->leaving) {
        if (link->check) advance_check(*link);
        read_socket(*link);
      } else if (has_left(link->stream.descriptor())) {
        end_leaving(*link);
      }
      did = true;
    }
  }
  return advance_admission() || did;
}

bool UcxTransport::advance_admission() {
  bool did = connections_.poll() != 0;
  did |= admission_->expire();
  return refresh_trust() || did;
}

// Links whose secret was taken out of the file end, and those whose certificates are valid no more.
bool UcxTransport::refresh_trust() {
  const std::uint64_t now = config_.clock->now_us();
  if (!tls_ || now < next_refresh_us_) return false;
  next_refresh_us_ = now + kRefreshUs;
  tls_->refresh();
  bool did = false;
  for (const auto& [peer, link] : links_) {
    if (link->stream.descriptor() < 0 || link->failure || tls_->still_trusts(link->proved)) continue;
    did = true;
    fail_link(
        *link, Reason::refused,
        {VMEM_ERROR_INVALID_OPTION, 0, fmt::format("{} {}", link->peer->address, tls_->distrust_of(link->proved))});
  }
  return did;
}

void UcxTransport::admit(stream::Admission::Outcome outcome) {
  if (outcome.key != 0) {
    UcxLink* const link = find(PeerId{outcome.key});
    if (link == nullptr || link->failure) return;
    if (outcome.failed) return fail_link(*link, outcome.reason, *std::move(outcome.failed));
    return introduce(*link, std::move(outcome));
  }
  if (outcome.failed) {
    if (const auto times = refused_.next(); times.logged)
      VMEM_LOG_WARN("a connection from {} was refused: {} ({} so far)", outcome.address, outcome.failed->message,
                    times.count);
    return;
  }
  auto owned = std::make_unique<UcxLink>();
  UcxLink& link = *owned;
  link.peer = add_peer(outcome.address, false);
  link.deadline_us = config_.clock->now_us() + config_.handshake_us;
  deadlines_.add(link.deadline_us, link.peer->id);
  links_.emplace(link.peer->id, std::move(owned));
  introduce(link, std::move(outcome));
}

void UcxTransport::introduce(UcxLink& link, stream::Admission::Outcome outcome) {
  link.node = {NodeId{outcome.theirs.node}, Incarnation{outcome.theirs.incarnation}};
  link.proved = outcome.stream.peer();
  link.peer->identity = link.proved.identity;
  link.stream = std::move(outcome.stream);
  if (!tls_) {
    if (FileDescriptor process = stream::peer_process(link.stream.descriptor()))
      link.peer->process = std::make_shared<const FileDescriptor>(std::move(process));
  }
  Status opened = open_workers(link);
  if (opened) opened = watch(link.stream.descriptor(), static_cast<std::uint64_t>(link.peer->id));
  if (!opened) return fail_link(link, Reason::lost, std::move(opened).error());
  link.introduction.link = crypto_->random();
  link.introduction.key = crypto_->short_key();
  link.exchange = std::make_unique<UcxExchange>(link.introduction);
  advance_exchange(link);
}

void UcxTransport::advance_exchange(UcxLink& link) {
  if (link.failure) return;
  const auto done = link.exchange->advance(link.stream);
  if (!done) {
    const bool broke = done.error().status == VMEM_ERROR_LOST;
    return fail_link(link, broke ? Reason::lost : Reason::refused,
                     lost(fmt::format("no connection to {}: {}", link.peer->address, done.error().message)));
  }
  epoll_event event{.events = EPOLLIN, .data = {.u64 = static_cast<std::uint64_t>(link.peer->id)}};
  if (link.exchange->wants_write()) event.events |= EPOLLOUT;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, link.stream.descriptor(), &event) != 0)
    return fail_link(link, Reason::lost, lost(fmt::format("epoll_ctl: {}", std::strerror(errno)), errno));
  if (*done) check_addresses(link);
}

void UcxTransport::check_addresses(UcxLink& link) {
  link.theirs = link.exchange->take();
  link.exchange.reset();
  auto check = checker_->start(link.theirs.addresses);
  if (!check) return fail_link(link, Reason::lost, std::move(check).error());
  link.check.emplace(*std::move(check));
  if (Status watched = watch(link.check->descriptor(), static_cast<std::uint64_t>(link.peer->id)); !watched)
    fail_link(link, Reason::lost, std::move(watched).error());
}

void UcxTransport::advance_check(UcxLink& link) {
  if (link.failure) return;
  const auto done = link.check->done();
  if (done && !*done) return;
  link.check.reset();
  if (done) return establish(link);
  const bool refused = done.error().status == VMEM_ERROR_INVALID_VALUE;
  fail_link(link, refused ? Reason::refused : Reason::lost,
            lost(fmt::format("no connection to {}: {}", link.peer->address, done.error().message)));
}

// The initiator greets, on its first channel, and the responder answers: so neither's greeting comes before the other knows the link.
void UcxTransport::establish(UcxLink& link) {
  UcxIntroduction theirs = std::move(link.theirs);
  const auto acquaintance =
      std::make_shared<const UcxAcquaintance>(UcxAcquaintance{.node = link.node,
                                                              .our_link = link.introduction.link,
                                                              .their_link = theirs.link,
                                                              .send_key = theirs.key,
                                                              .receive_key = link.introduction.key});
  link.channels = static_cast<std::uint32_t>(std::min(link.workers.size(), theirs.addresses.size()));
  link.peer->channels.store(link.channels, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < link.channels; ++i) {
    FileDescriptor socket(::fcntl(link.stream.descriptor(), F_DUPFD_CLOEXEC, 0));
    if (!socket) {
      link.channels = i;
      return fail_link(link, Reason::lost, lost(fmt::format("a descriptor: {}", std::strerror(errno)), errno));
    }
    auto channel = std::make_unique<UcxChannel>();
    channel->peer = link.peer;
    channel->index = i;
    channel->greet_us = link.deadline_us;
    channel->acquaintance = acquaintance;
    channel->worker = std::move(link.workers[i]);
    loops_[i]->post(
        UcxOpen{std::move(channel), std::move(theirs.addresses[i]), link.peer->by_us && i == 0, std::move(socket)});
  }
  link.workers.clear();
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
  if (failed.failure.reason == Reason::lost && !link->failure && link->stream.descriptor() >= 0) read_socket(*link);
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
  if (link.failure || !is_leaving(link.stream.descriptor())) return;
  std::byte farewell{};
  const auto got = link.stream.read(Bytes(&farewell, 1));
  if (got && *got == 0) return;  // a part of a record
  if (got)
    return fail_link(link, Reason::left,
                     lost(fmt::format("{} left: {}", link.peer->address, farewell_words(farewell))));
  fail_link(link, Reason::lost,
            lost(fmt::format("{} is lost: {}", link.peer->address,
                             got.error().native == 0 ? "its process ended" : got.error().message),
                 got.error().native));
}

void UcxTransport::fail_link(UcxLink& link, Reason reason, Error error) {
  if (link.failure) return;
  link.failure = UcxFailure{reason, std::move(error)};
  failed_.push_back(&link);
}

void UcxTransport::stop_link(UcxLink& link) {
  const PeerId peer = link.peer->id;
  admission_->cancel(static_cast<std::uint64_t>(peer));
  {
    const std::lock_guard lock(link.peer->mutex);
    link.peer->over = true;
  }
  if (!link.connected) deadlines_.remove(link.deadline_us, peer);
  for (const std::unique_ptr<UcxSend>& send : std::exchange(link.held, {})) {
    deadlines_.remove(send->deadline_us, peer);
    fail_unsent(*send, *link.failure);
  }
  link.check.reset();
  link.running = link.channels;
  for (std::uint32_t i = 0; i < link.channels; ++i) loops_[i]->post(UcxStop{peer});
  if (link.channels == 0) leave(link);
}

// Neither side closes anything of UCX while the other may be in the midst of connecting to it: see UcxLoop::may_progress.
void UcxTransport::leave(UcxLink& link) {
  if (link.stream.descriptor() < 0) return left_.push_back(&link);
  // In the midst of an exchange it would be taken for a part of that.
  if (!link.exchange) {
    const std::byte farewell = farewell_of(link.failure->reason);
    const ConstBytes said[] = {ConstBytes(&farewell, 1)};
    (void)link.stream.write(said);
    (void)link.stream.flush();
  }
  (void)::shutdown(link.stream.descriptor(), SHUT_WR);
  link.exchange.reset();
  link.leaving = true;
  link.deadline_us = config_.clock->now_us() + kFarewellUs;
  deadlines_.add(link.deadline_us, link.peer->id);
  // One that was connected and is silent is in the midst of nothing.
  const bool silent = link.connected && link.failure->reason == Reason::timeout;
  if (silent || has_left(link.stream.descriptor())) end_leaving(link);
}

void UcxTransport::end_leaving(UcxLink& link) {
  if (std::exchange(link.leaving, false)) left_.push_back(&link);
}

void UcxTransport::end_link(UcxLink& link) {
  const PeerId peer = link.peer->id;
  if (link.stream.descriptor() >= 0) {
    deadlines_.remove(link.deadline_us, peer);
    // A loop may have the socket, too: closing it does not end its events.
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.stream.descriptor(), nullptr);
    link.stream.shut();
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
