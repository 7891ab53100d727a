#include "rdma/node/calls.hpp"

#include <algorithm>

#include "rdma/node/peer_book.hpp"

namespace vmem::rdma {

Result<SendId> Calls::send(const Call& call, std::uint64_t sequence) {
  VMEM_ASSIGN(const auto header,
              wire::write({.version = peers_.version(call.peer),
                           .kind = call.kind,
                           .request = {static_cast<std::uint64_t>(self_.id),
                                       Epoch{static_cast<std::uint64_t>(self_.incarnation)}, sequence},
                           .payload_bytes = call.payload.size(),
                           .order = call.order},
                          call.body));
  const ConstBytes pieces[] = {call.payload};
  Send send{.peer = call.peer, .header = header, .deadline_us = call.deadline_us};
  if (!call.payload.empty()) send.payload = pieces;
  VMEM_TRY(transport_.send({&send, 1}));
  return send.id;
}

// A call over a connection that is gone ends at once. Nothing else would end it: what its deadline
// does is to close the connection.
Status Calls::begin(const Call& call, Then then) {
  if (peers_.find(call.peer) == nullptr) {
    ended_.push_back({.peer = call.peer, .kind = call.kind, .owner = call.owner, .then = std::move(then)});
    return {};
  }
  const std::uint64_t sequence = ++last_sequence_;
  VMEM_ASSIGN(const SendId sent, send(call, sequence));
  Open& open = open_[sequence];
  open.peer = call.peer;
  open.kind = call.kind;
  open.owner = call.owner;
  open.destination = call.destination;
  open.reply_bytes = call.reply_bytes;
  open.deadline_us = call.deadline_us;
  open.then = std::move(then);
  deadlines_.emplace(call.deadline_us, sequence);
  if (call.payload.empty()) return {};
  open.sending = sent;
  sends_.emplace(sent, sequence);
  return {};
}

Status Calls::tell(const Call& call) {
  VMEM_TRY(send(call, ++last_sequence_));
  return {};
}

bool Calls::run_ended() {
  const bool any = !ended_.empty();
  while (!ended_.empty()) {
    Open ended = std::move(ended_.front());
    ended_.pop_front();
    ended.then(ended.end);
  }
  return any;
}

// ---- events ----

// The call over this connection that the reply answers, if it is open.
Calls::OpenCalls::iterator Calls::find(PeerId peer, const wire::Parsed& message) {
  const wire::Header& header = message.header;
  const auto found = open_.find(header.request.sequence);
  if (found == open_.end()) return found;
  const Open& call = found->second;
  const bool answers = call.peer == peer && header.request.client == static_cast<std::uint64_t>(self_.id) &&
                       static_cast<std::uint16_t>(header.kind) == static_cast<std::uint16_t>(call.kind) + 1 &&
                       message.body.size() >= call.reply_bytes.least && message.body.size() <= call.reply_bytes.most;
  return answers && call.is_open() && !call.landing ? found : open_.end();
}

std::optional<Claim> Calls::claim(PeerId peer, const wire::Parsed& message, std::uint64_t payload_bytes) {
  const auto found = find(peer, message);
  if (found == open_.end() || found->second.destination.size() != payload_bytes) return std::nullopt;
  Open& call = found->second;
  call.landing = true;
  call.end.body.assign(message.body.begin(), message.body.end());
  return Claim{call.destination, found->first, call.deadline_us};
}

void Calls::landed(std::uint64_t token) {
  const auto found = open_.find(token);
  if (found == open_.end()) return;
  found->second.landing = false;
  found->second.end.answered = true;
  found->second.end.landed = true;
  settle(found);
}

void Calls::receive_failed(std::uint64_t token) {
  const auto found = open_.find(token);
  if (found == open_.end()) return;
  found->second.landing = false;
  settle(found);
}

void Calls::answered(PeerId peer, const wire::Parsed& message) {
  const auto found = find(peer, message);
  if (found == open_.end()) return;
  found->second.end.answered = true;
  found->second.end.body.assign(message.body.begin(), message.body.end());
  settle(found);
}

std::optional<std::uint64_t> Calls::sender_of(SendId id) {
  const auto send = sends_.extract(id);
  if (send.empty()) return std::nullopt;
  return send.mapped();
}

void Calls::sent(SendId id) {
  const auto sequence = sender_of(id);
  if (!sequence) return;
  const auto found = open_.find(*sequence);
  found->second.sending = {};
  settle(found);
}

void Calls::send_failed(SendId id) {
  const auto sequence = sender_of(id);
  if (!sequence) return;
  const auto found = open_.find(*sequence);
  found->second.sending = {};
  found->second.broken = !found->second.end.answered;
  settle(found);
}

void Calls::break_all(PeerId peer) {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto call = each++;
    if (call->second.peer != peer) continue;
    call->second.broken = !call->second.end.answered;
    settle(call);
  }
}

void Calls::settle(OpenCalls::iterator call) {
  const Open& settled = call->second;
  if (settled.is_open() || settled.landing || settled.sending != SendId{}) return;
  deadlines_.erase({settled.deadline_us, call->first});
  ended_.push_back(std::move(call->second));
  open_.erase(call);
}

bool Calls::awaits(PeerId peer) const {
  return std::ranges::any_of(open_, [&](const auto& each) { return each.second.peer == peer; });
}

// ---- services that leave ----

bool Calls::any_of(const Service* owner) const {
  return std::ranges::any_of(open_, [&](const auto& each) { return each.second.owner == owner; }) ||
         std::ranges::any_of(ended_, [&](const Open& each) { return each.owner == owner; });
}

void Calls::drop(const Service* owner) {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto call = each++;
    if (call->second.owner != owner) continue;
    deadlines_.erase({call->second.deadline_us, call->first});
    sends_.erase(call->second.sending);
    open_.erase(call);
  }
  std::erase_if(ended_, [&](const Open& each) { return each.owner == owner; });
}

}  // namespace vmem::rdma
