#include "rdma/lending/remote_tier/requests.hpp"

#include <utility>

#include "base/log.hpp"

namespace vmem::rdma {

using wire::Answer;
using wire::Kind;

bool Requests::send(Request request, Reply reply, const std::string& address, ConstBytes body, Bytes payload) {
  const std::uint64_t sequence = ++last_sequence_;
  request.deadline_us = clock_.now_us() + request_us_;
  const auto header = wire::write({.kind = request.kind,
                                   .request = {static_cast<std::uint64_t>(self_.id),
                                               Epoch{static_cast<std::uint64_t>(self_.incarnation)}, sequence},
                                   .payload_bytes = payload.size()},
                                  body);
  const ConstBytes pieces[] = {payload};
  Send send{.peer = request.peer, .deadline_us = request.deadline_us};
  if (header) send.header = *header;
  if (!payload.empty()) send.payload = pieces;
  const Status posted = header ? transport_.send({&send, 1}) : Status(std::unexpected(header.error()));
  if (!posted) {
    if (const auto times = unsent_.next(); times.logged)
      VMEM_LOG_WARN("a {} was not sent to {}: {} ({} so far)", wire::kind_name(request.kind), address,
                    posted.error().message, times.count);
    return false;
  }
  if (reply == Reply::none) return true;
  if (!payload.empty()) {
    request.sending = send.id;
    sends_.emplace(send.id, sequence);
  }
  open_.emplace(sequence, std::move(request));
  return true;
}

std::optional<Request> Requests::next_ended() {
  if (ended_.empty()) return std::nullopt;
  Request next = std::move(ended_.front());
  ended_.pop_front();
  return next;
}

void Requests::clear() {
  open_.clear();
  ended_.clear();
}

std::optional<Claim> Requests::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  const auto parsed = wire::parse(header);
  if (!parsed || parsed->header.kind != Kind::fetched) return std::nullopt;
  const auto found = open_.find(parsed->header.request.sequence);
  if (found == open_.end()) return std::nullopt;
  Request& request = found->second;
  const bool ours = request.kind == Kind::fetch && request.peer == peer &&
                    parsed->header.request.client == static_cast<std::uint64_t>(self_.id) &&
                    request.destination.size() == payload_bytes;
  if (!ours || request.landing || !request.is_open()) return std::nullopt;
  request.landing = true;
  return Claim{request.destination, found->first, request.deadline_us};
}

bool Requests::landed(std::uint64_t token) {
  const auto found = open_.find(token);
  if (found == open_.end()) return false;
  found->second.landing = false;
  found->second.answer = Answer::done;
  settle(found);
  return true;
}

bool Requests::answered(PeerId peer, const wire::Parsed& message) {
  const auto found = open_.find(message.header.request.sequence);
  if (found == open_.end()) return false;
  Request& request = found->second;
  if (request.peer != peer || request.answer) return false;
  if (static_cast<std::uint16_t>(message.header.kind) != static_cast<std::uint16_t>(request.kind) + 1) return false;
  if (request.kind == Kind::allocate) {
    request.lent = wire::read_body<wire::Lent>(message.body);
    if (!request.lent) return true;
    request.answer = request.lent->answer;
  } else if (request.kind == Kind::put || request.kind == Kind::fetch) {
    const auto reply = wire::read_body<wire::Reply>(message.body);
    // A `done` reply to a fetch is valid only with its page, which has a token.
    if (!reply || request.landing || (request.kind == Kind::fetch && reply->answer == Answer::done)) return true;
    request.answer = reply->answer;
  } else {
    request.answer = Answer::done;
  }
  settle(found);
  return true;
}

void Requests::receive_failed(std::uint64_t token) {
  const auto found = open_.find(token);
  if (found == open_.end()) return;
  found->second.landing = false;
  settle(found);
}

void Requests::sent(SendId id) {
  const auto send = sends_.extract(id);
  if (send.empty()) return;
  const auto found = open_.find(send.mapped());
  found->second.sending = {};
  settle(found);
}

void Requests::send_failed(SendId id) {
  const auto send = sends_.extract(id);
  if (send.empty()) return;
  const auto found = open_.find(send.mapped());
  found->second.sending = {};
  found->second.broken = !found->second.answer;
  settle(found);
}

void Requests::break_all(std::uint32_t node) {
  for (auto each = open_.begin(); each != open_.end();) {
    const auto request = each++;
    if (request->second.node != node) continue;
    request->second.broken = !request->second.answer;
    settle(request);
  }
}

void Requests::settle(Open::iterator request) {
  const Request& settled = request->second;
  if (settled.is_open() || settled.landing || settled.sending != SendId{}) return;
  ended_.push_back(std::move(request->second));
  open_.erase(request);
}

}  // namespace vmem::rdma
