#include "rdma/transport/ucx/ucx_links.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "rdma/transport/ucx/farewell.hpp"

namespace vmem::rdma {
namespace {

Error lost(std::string why, int native = 0) { return {VMEM_ERROR_LOST, native, std::move(why)}; }

// The last byte on a link's socket: why this node closes the link.
std::byte farewell_of(Reason reason) { return static_cast<std::byte>(reason); }
std::string_view farewell_words(std::byte farewell) {
  return farewell == farewell_of(Reason::timeout) ? "a deadline passed there" : "it closed the connection";
}

}  // namespace

UcxLink& UcxLinks::add(UcxPeerRef peer, std::uint64_t deadline_us) {
  auto link = std::make_unique<UcxLink>();
  const PeerId id = peer->id;
  link->peer = std::move(peer);
  link->deadline_us = deadline_us;
  deadlines_.add(deadline_us, id);
  return *links_.emplace(id, std::move(link)).first->second;
}

UcxLink* UcxLinks::find(PeerId peer) {
  const auto link = links_.find(peer);
  return link == links_.end() ? nullptr : link->second.get();
}

void UcxLinks::send(std::unique_ptr<UcxSend> send) {
  UcxLink* const link = find(send->peer->id);
  if (link == nullptr || link->failure)
    return parts_.sender.refuse(*send, link == nullptr ? peer_is_gone() : *link->failure);
  if (link->connected) return parts_.sender.dispatch(std::move(send));
  deadlines_.add(send->deadline_us, send->peer->id);
  link->held.push_back(std::move(send));
}

// ---- what loops report ----

void UcxLinks::handle(UcxReport report) {
  std::visit([&](auto& each) { handle(each); }, report);
}

void UcxLinks::handle(const UcxConnected& connected) {
  UcxLink* const link = find(connected.peer);
  if (link == nullptr || link->failure) return;
  link->connected = true;
  deadlines_.remove(link->deadline_us, connected.peer);
  for (std::unique_ptr<UcxSend>& send : std::exchange(link->held, {})) {
    deadlines_.remove(send->deadline_us, connected.peer);
    parts_.sender.dispatch(std::move(send));
  }
}

// If the link has failed, the announced payload is dropped with its channel.
void UcxLinks::handle(UcxAnnounced& announced) {
  UcxLink* const link = find(announced.peer);
  if (link == nullptr || link->failure) return;
  const std::uint64_t bytes = announced.payload_bytes;
  UcxLoop& loop = *parts_.loops[announced.index];
  const std::optional<Claim> claim = parts_.receiver.claim(announced.peer, announced.header, bytes);
  const bool fits = claim && claim->destination.size() == bytes;
  if (claim && !fits) {
    VMEM_LOG_ERROR("{} bytes were claimed for a payload of {}", claim->destination.size(), bytes);
    parts_.owner.tell(
        {announced.peer, ReceiveFailed{claim->token, {VMEM_ERROR_INTERNAL, 0, "claimed with another size"}}});
  }
  if (announced.descriptor != nullptr) {
    if (!fits) return loop.post(UcxRefuse{announced.peer, announced.descriptor});
    return loop.post(UcxTake{announced.peer, announced.descriptor, std::move(announced.header), *claim});
  }
  if (!fits) return;
  std::memcpy(claim->destination.data(), announced.payload.data(), bytes);
  parts_.owner.tell({announced.peer, Message{std::move(announced.header), claim->destination, claim->token}});
}

// A UCX error. If the peer gave its reason for leaving on the socket, that reason counts.
void UcxLinks::handle(UcxFailed& failed) {
  UcxLink* const link = find(failed.peer);
  if (link == nullptr) return;
  if (failed.failure.reason == Reason::lost && !link->failure && link->stream.descriptor() >= 0) read_farewell(*link);
  fail(*link, failed.failure.reason, std::move(failed.failure.error));
}

void UcxLinks::handle(const UcxStopped& stopped) {
  UcxLink& link = *find(stopped.peer);
  if (--link.running == 0) leave(link);
}

void UcxLinks::handle(const UcxEnded& ended) {
  UcxLink& link = *find(ended.peer);
  if (--link.channels == 0) forget(link);
}

// ---- how they end ----

void UcxLinks::socket_is_ready(UcxLink& link) {
  if (!link.leaving) return read_farewell(link);
  if (rdma::has_left(link.stream.descriptor())) end_leaving(link);
}

void UcxLinks::read_farewell(UcxLink& link) {
  if (link.failure || !is_leaving(link.stream.descriptor())) return;
  std::byte farewell{};
  const auto got = link.stream.read(Bytes(&farewell, 1));
  if (got && *got == 0) return;  // an incomplete record
  if (got)
    return fail(link, Reason::left, lost(fmt::format("{} left: {}", link.peer->address, farewell_words(farewell))));
  fail(link, Reason::lost,
       lost(fmt::format("{} is lost: {}", link.peer->address,
                        got.error().native == 0 ? "its process ended" : got.error().message),
            got.error().native));
}

void UcxLinks::fail(UcxLink& link, Reason reason, Error error) {
  if (link.failure) return;
  link.failure = UcxFailure{reason, std::move(error)};
  failed_.push_back(&link);
}

void UcxLinks::close(PeerId peer) {
  if (UcxLink* const link = find(peer))
    fail(*link, Reason::closed, lost(fmt::format("the connection to {} was closed", link->peer->address)));
}

void UcxLinks::stop(UcxLink& link) {
  const PeerId peer = link.peer->id;
  parts_.admission.cancel(static_cast<std::uint64_t>(peer));
  {
    const std::lock_guard lock(link.peer->mutex);
    link.peer->over = true;
  }
  if (!link.connected) deadlines_.remove(link.deadline_us, peer);
  for (const std::unique_ptr<UcxSend>& send : std::exchange(link.held, {})) {
    deadlines_.remove(send->deadline_us, peer);
    parts_.sender.refuse(*send, *link.failure);
  }
  link.check.reset();
  link.running = link.channels;
  for (std::uint32_t i = 0; i < link.channels; ++i) parts_.loops[i]->post(UcxStop{peer});
  if (link.channels == 0) leave(link);
}

// Neither side closes UCX objects while the other may still be connecting to them: see
// UcxLoop::may_progress.
void UcxLinks::leave(UcxLink& link) {
  if (link.stream.descriptor() < 0) return left_.push_back(&link);
  // During an exchange, the byte would be taken for a part of it.
  if (!link.exchange) {
    const std::byte farewell = farewell_of(link.failure->reason);
    const ConstBytes said[] = {ConstBytes(&farewell, 1)};
    (void)link.stream.write(said);
    (void)link.stream.flush();
  }
  (void)::shutdown(link.stream.descriptor(), SHUT_WR);
  link.exchange.reset();
  link.leaving = true;
  link.deadline_us = parts_.clock.now_us() + kFarewellUs;
  deadlines_.add(link.deadline_us, link.peer->id);
  // A connected peer that missed a deadline is not connecting: no need to wait for it.
  const bool silent = link.connected && link.failure->reason == Reason::timeout;
  if (silent || rdma::has_left(link.stream.descriptor())) end_leaving(link);
}

void UcxLinks::end_leaving(UcxLink& link) {
  if (std::exchange(link.leaving, false)) left_.push_back(&link);
}

void UcxLinks::end(UcxLink& link) {
  const PeerId peer = link.peer->id;
  if (link.stream.descriptor() >= 0) {
    deadlines_.remove(link.deadline_us, peer);
    // A loop may hold a duplicate of the socket, so closing it does not end its events.
    parts_.poll.forget(link.stream.descriptor());
    link.stream.shut();
  }
  for (std::uint32_t i = 0; i < link.channels; ++i) parts_.loops[i]->post(UcxEnd{peer, *link.failure});
  if (link.channels == 0) forget(link);
}

void UcxLinks::forget(UcxLink& link) {
  const PeerId peer = link.peer->id;
  parts_.peers.remove(peer);
  parts_.owner.tell({peer, Gone{link.failure->reason, std::move(link.failure->error)}});
  links_.erase(peer);
}

bool UcxLinks::settle() {
  const bool did = !failed_.empty() || !left_.empty();
  for (UcxLink* link : std::exchange(failed_, {})) stop(*link);
  for (UcxLink* link : std::exchange(left_, {})) end(*link);
  return did;
}

bool UcxLinks::expire() {
  const std::uint64_t now = parts_.clock.now_us();
  if (!deadlines_.expired(now)) return false;
  bool did = false;
  deadlines_.for_expired(now, [&](PeerId peer) {
    UcxLink& link = *find(peer);
    if (link.failure && !link.leaving) return;
    did = true;
    if (link.leaving) return end_leaving(link);
    fail(link, Reason::timeout,
         {VMEM_ERROR_TIMEOUT, 0, fmt::format("{} did not connect before the deadline", link.peer->address)});
  });
  return did;
}

void UcxLinks::end_all(Patience patience) {
  for (auto& [peer, link] : links_) {
    fail(*link, Reason::closed, lost("the transport ends"));
    if (patience == Patience::wait_no_more) end_leaving(*link);
  }
  settle();
}

}  // namespace vmem::rdma
