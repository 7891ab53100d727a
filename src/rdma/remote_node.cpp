// The remote tier's connections: made, kept, given up and made again; and requests over them.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"
#include "rdma/remote_tier.hpp"
#include "rdma/socket_address.hpp"

namespace vmem::rdma {

using wire::Answer;
using wire::Kind;

namespace {

constexpr std::uint64_t kBeforeAskingAgainUs = 50'000;
constexpr std::uint64_t kBeforeFullAgainUs = 1'000'000;
constexpr std::uint64_t kLookUs = 5'000;  // between looks for lenders that ended

std::string full_words(const wire::Lent& lent) {
  std::string words = fmt::format("{} of {} that it lends are leased to {} nodes", format_bytes(lent.leased_bytes),
                                  format_bytes(lent.lendable_bytes), lent.nodes);
  if (lent.holder == 0) return words;
  words += fmt::format(", {} of them to node {}, which is ", format_bytes(lent.holder_bytes), lent.holder);
  if (lent.holder_left_us == 0) return words + "connected: end that program, or have the daemon lend more";
  return words + fmt::format("gone, and has it for {} more if its end is not seen (the daemon's --grace)",
                             exact_duration_us((lent.holder_left_us + 999'999) / 1'000'000 * 1'000'000));
}

// --listen takes no name before the address that it was looked up as: "gpu07/10.0.0.1:7000".
std::string needed_there(const std::string& address, RemoteTier::Credentials credentials) {
  const std::string listen = address.substr(address.find('/') + 1);
  const auto parsed = SocketAddress::parse(listen);
  const bool other_machine = parsed && !parsed->is_loopback();
  switch (credentials == RemoteTier::Credentials::user && other_machine ? RemoteTier::Credentials::secret
                                                                        : credentials) {
    case RemoteTier::Credentials::secret:
      return fmt::format(
          "`vmem daemon --listen {} --lend SIZE --secret FILE` has to run there, with the same secret and version",
          listen);
    case RemoteTier::Credentials::certificates:
      return fmt::format(
          "`vmem daemon --listen {} --lend SIZE --certificates DIR` has to run there, with a certificate of the same "
          "authority, and the same version",
          listen);
    case RemoteTier::Credentials::user:
      break;
  }
  return fmt::format("`vmem daemon --listen {} --lend SIZE` has to run there, with the same version", listen);
}

}  // namespace

RemoteTier::Node* RemoteTier::node_of(PeerId peer) {
  const auto found = std::ranges::find(nodes_, peer, &Node::peer);
  return peer == PeerId{} || found == nodes_.end() ? nullptr : &*found;
}

bool RemoteTier::keep_connected() {
  bool did = false;
  const std::uint64_t now = config_.clock->now_us();
  for (Node& node : nodes_) {
    const bool quiet =
        node.state == Node::State::ready && !node.pinged && !node.closing && now - node.heard_us >= config_.ping_us;
    if (quiet) {
      node.pinged = true;
      request({.kind = Kind::ping, .node = index_of(node), .job = nullptr}, {});
    }
    if (node.state == Node::State::asking && node.ask_us != 0 && now >= node.ask_us) ask(node);
    if (node.state != Node::State::away || now < node.again_us || leaving_) continue;
    did = true;
    node.closing = node.is_full = node.nobody_listens = false;
    const auto peer = transport_->connect(node.address, now + config_.request_us);
    if (peer) {
      node.peer = *peer;
      node.state = Node::State::connecting;
      continue;
    }
    node.why = peer.error().message;
    node.again_us = now + config_.reconnect_us;
    first_outcome(node);
  }
  return did;
}

void RemoteTier::handle(PeerId peer, Connected& connected) {
  Node* const node = node_of(peer);
  if (node == nullptr) return;
  if (const auto allowed = config_.heard ? config_.heard(node->address, connected.node) : Status{}; !allowed) {
    node->why = allowed.error().message;
    if (const auto times = unused_.next(); times.logged)
      VMEM_LOG_WARN("the node at {} is not used: {} ({} such refusals)", node->address, node->why, times.count);
    return close(*node);
  }
  if (node->identity != connected.node) {
    if (node->lease != 0) lose_lease(index_of(*node), "it was started anew, without what it held");
    dead_.forget(node->identity.id);
  }
  node->identity = connected.node;
  dead_.watch(connected.node, connected.process);
  node->path = connected.path;
  node->state = Node::State::asking;
  ask(*node);
}

void RemoteTier::ask(Node& node) {
  node.ask_us = 0;
  const wire::Ask ask{config_.borrow_bytes, config_.borrow_bytes};
  request({.kind = Kind::allocate, .node = index_of(node), .job = nullptr}, wire::body_of(ask));
}

void RemoteTier::on_lent(Node& node, const wire::Lent& lent) {
  if (node.state != Node::State::asking || node.closing) return;
  if (lent.answer == Answer::again) {
    node.ask_us = config_.clock->now_us() + kBeforeAskingAgainUs;
    return;
  }
  if (lent.answer != Answer::done) {
    node.why = lent.answer == Answer::full ? full_words(lent) : std::string(wire::answer_words(lent.answer));
    node.is_full = true;
    node.rest_us = kBeforeFullAgainUs;
    return close(node);
  }
  if (node.lease != lent.lease && node.lease != 0) lose_lease(index_of(node), "it dropped what it held for this node");
  const std::lock_guard lock(mutex_);
  Room& room = rooms_[index_of(node)];
  if (node.lease != lent.lease) {
    node.lease = lent.lease;
    room = {.lease = lent.lease,
            .memory_bytes = lent.memory_bytes,
            .disk_range = lent.disk_bytes,
            .disk_bytes = lent.disk_bytes,
            .memory = Extents(0, lent.memory_bytes),
            .disk = Extents(wire::kDiskOffset, lent.disk_bytes)};
  }
  room.disk_bytes = std::min(room.disk_bytes, lent.disk_bytes);
  room.ready = true;
  node.state = Node::State::ready;
  node.heard_us = config_.clock->now_us();
  node.pinged = false;
  node.why.clear();
  if (std::exchange(node.was_ready, true)) {
    ++statistics_.reconnects;
    if (const auto times = back_.next(); times.logged)
      VMEM_LOG_INFO("node {} at {} is back, by {} ({} so far)", static_cast<std::uint64_t>(node.identity.id),
                    node.address, node.path, times.count);
  }
  Reached& reached = reached_[index_of(node)];
  reached = {.tried = true, .reached = true, .path = node.path, .why = {}};
  changed_.notify_all();
}

// Its disk, or one of them, went out of service. What lies there is read as long as it answers.
void RemoteTier::on_less(const Node& node, const wire::Lent& lent) {
  if (node.state != Node::State::ready || node.lease != lent.lease) return;
  const std::lock_guard lock(mutex_);
  Room& room = rooms_[index_of(node)];
  if (lent.disk_bytes >= room.disk_bytes) return;
  if (const auto times = less_.next(); times.logged)
    VMEM_LOG_WARN("a disk of node {} at {} failed: of {} there, {} are left ({} such failures)",
                  static_cast<std::uint64_t>(node.identity.id), node.address, format_bytes(room.disk_bytes),
                  format_bytes(lent.disk_bytes), times.count);
  room.disk_bytes = lent.disk_bytes;
}

// Its copies are gone.
void RemoteTier::lose_lease(std::uint32_t index, const std::string& why) {
  Node& node = nodes_[index];
  std::uint64_t copies = 0, last = 0;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [slot, held] : held_) {
      for (std::size_t i = 0; i < config_.replicas; ++i) {
        const Copy& copy = slots_[slot].copies[i];
        if (!held.valid[i] || copy.node != index || copy.lease != node.lease) continue;
        held.valid[i] = false;
        ++copies;
        last += std::ranges::none_of(held.valid, std::identity{}) ? 1 : 0;
      }
    }
    rooms_[index] = {};
    statistics_.copies_lost += copies;
  }
  node.lease = 0;
  if (copies == 0) return;
  if (const auto times = lost_.next(); times.logged)
    VMEM_LOG_ERROR("node {} at {} is lost ({}), with {} copies of pages, {} of them the last ({} such losses)",
                   static_cast<std::uint64_t>(node.identity.id), node.address, why, copies, last, times.count);
}

// Closes the connection as well: a forked child of the lender may keep it open. A connection that is being made leads to
// another process.
bool RemoteTier::find_dead() {
  look_us_ = config_.clock->now_us() + kLookUs;
  const auto found = dead_.find();
  for (Node& node : nodes_) {
    if (std::ranges::find(found, node.identity) == found.end()) continue;
    node.why = "its process has ended";
    if (node.lease != 0) lose_lease(index_of(node), node.why);
    if (node.state != Node::State::connecting) close(node);
  }
  return !found.empty();
}

void RemoteTier::handle(PeerId peer, Gone& gone) {
  Node* const node = node_of(peer);
  if (node == nullptr) return;
  const std::uint64_t now = config_.clock->now_us();
  const std::uint32_t index = index_of(*node);
  const bool was_ready = node->state == Node::State::ready;
  if (gone.reason != Reason::closed || node->why.empty()) node->why = gone.error.message;
  node->nobody_listens = gone.error.native == ECONNREFUSED;
  if (was_ready) {
    if (const auto times = broken_.next(); times.logged)
      VMEM_LOG_WARN("the connection to node {} at {} is gone: {} ({} so far)",
                    static_cast<std::uint64_t>(node->identity.id), node->address, node->why, times.count);
    const std::lock_guard lock(mutex_);
    rooms_[index].ready = false;
  }
  if (gone.reason == Reason::timeout && config_.missed && node->identity.id != NodeId{})
    config_.missed(node->identity.id);
  node->state = Node::State::away;
  node->peer = {};
  node->again_us = now + (was_ready ? 0 : std::max(config_.reconnect_us, std::exchange(node->rest_us, 0)));
  first_outcome(*node);
  std::vector<std::uint64_t> broken;
  for (auto& [sequence, request] : requests_) {
    if (request.node != index) continue;
    request.broken = !request.answer;
    broken.push_back(sequence);
  }
  for (const std::uint64_t sequence : broken) settle(sequence);
}

void RemoteTier::first_outcome(Node& node) {
  const std::lock_guard lock(mutex_);
  Reached& reached = reached_[index_of(node)];
  if (!std::exchange(reached.tried, true)) {
    reached.why = node.why;
    reached.full = node.is_full;
    reached.nobody_listens = node.nobody_listens;
  }
  changed_.notify_all();
}

void RemoteTier::close(Node& node) {
  if (node.peer == PeerId{} || std::exchange(node.closing, true)) return;
  transport_->close(node.peer);
}

Status RemoteTier::wait_for_peers(std::uint64_t most_us) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(most_us),
                    [&] { return std::ranges::all_of(reached_, [](const Reached& each) { return each.tried; }); });
  for (std::size_t i = 0; i < reached_.size(); ++i) {
    const Reached& node = reached_[i];
    if (node.reached) continue;
    std::string why = node.tried ? node.why : "it did not answer in time";
    if (node.nobody_listens)
      why = fmt::format("nothing listens there{} ({})",
                        config_.credentials == Credentials::user ? " without a secret" : "", why);
    if (!node.full) why += "; " + needed_there(config_.peers[i], config_.credentials);
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--remote {}: {}", config_.peers[i], why));
  }
  return {};
}

// ---- requests ----

std::uint64_t RemoteTier::request(Request request, ConstBytes body, Bytes payload) {
  const std::uint64_t sequence = ++last_sequence_;
  const Node& node = nodes_[request.node];
  request.deadline_us = config_.clock->now_us() + config_.request_us;
  // Nobody answers the release of a page.
  const bool answered = request.kind != Kind::release || leaving_;
  const auto header = wire::write({.kind = request.kind,
                                   .request = {static_cast<std::uint64_t>(config_.self.id),
                                               Epoch{static_cast<std::uint64_t>(config_.self.incarnation)}, sequence},
                                   .payload_bytes = payload.size()},
                                  body);
  const ConstBytes pieces[] = {payload};
  Send send{.peer = node.peer, .deadline_us = request.deadline_us};
  if (header) send.header = *header;
  if (!payload.empty()) send.payload = pieces;
  const Status posted = header ? transport_->send({&send, 1}) : Status(std::unexpected(header.error()));
  if (!posted) {
    if (const auto times = unsent_.next(); times.logged)
      VMEM_LOG_WARN("a {} was not sent to {}: {} ({} so far)", wire::kind_name(request.kind), node.address,
                    posted.error().message, times.count);
  }
  if (!answered) return sequence;
  request.broken = !posted;
  if (posted && !payload.empty()) {
    request.sending = send.id;
    sends_.emplace(send.id, sequence);
  }
  requests_.emplace(sequence, std::move(request));
  if (!posted) settle(sequence);
  return sequence;
}

std::optional<Claim> RemoteTier::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  const auto parsed = wire::parse(header);
  if (!parsed || parsed->header.kind != Kind::fetched) return std::nullopt;
  const auto found = requests_.find(parsed->header.request.sequence);
  if (found == requests_.end()) return std::nullopt;
  Request& request = found->second;
  const bool ours = request.kind == Kind::fetch && nodes_[request.node].peer == peer &&
                    parsed->header.request.client == static_cast<std::uint64_t>(config_.self.id) &&
                    request.job->transfer.bytes == payload_bytes;
  if (!ours || request.landing || request.answer || request.broken) return std::nullopt;
  request.landing = true;
  return Claim{request.job->stored, found->first, request.deadline_us};
}

void RemoteTier::handle(PeerId peer, Message& message) {
  Node* const node = node_of(peer);
  const auto parsed = wire::parse(message.header);
  // What landed was parsed before.
  if (message.token != 0) {
    const auto landed = requests_.find(message.token);
    if (landed == requests_.end()) return;
    landed->second.landing = false;
    landed->second.answer = Answer::done;
    if (node != nullptr) node->heard_us = config_.clock->now_us();
    return settle(message.token);
  }
  if (!parsed || node == nullptr) return;
  if (parsed->header.request.sequence == wire::kUnasked) {
    if (const auto lent = wire::read_body<wire::Lent>(parsed->body)) on_less(*node, *lent);
    return;
  }
  const auto found = requests_.find(parsed->header.request.sequence);
  if (found == requests_.end() || &nodes_[found->second.node] != node || found->second.answer) return;
  Request& request = found->second;
  if (static_cast<std::uint16_t>(parsed->header.kind) != static_cast<std::uint16_t>(request.kind) + 1) return;
  node->heard_us = config_.clock->now_us();
  if (request.kind == Kind::allocate) {
    const auto lent = wire::read_body<wire::Lent>(parsed->body);
    if (!lent) return;
    request.answer = lent->answer;
    settle(found->first);
    return on_lent(*node, *lent);
  }
  if (request.kind == Kind::put || request.kind == Kind::fetch) {
    const auto reply = wire::read_body<wire::Reply>(parsed->body);
    // A page that is said to come comes with it.
    if (!reply || request.landing || (request.kind == Kind::fetch && reply->answer == Answer::done)) return;
    request.answer = reply->answer;
  } else {
    request.answer = Answer::done;
  }
  if (request.kind == Kind::ping) node->pinged = false;
  if (request.kind == Kind::release) {
    const std::lock_guard lock(mutex_);
    --farewells_;
    changed_.notify_all();
  }
  settle(found->first);
}

void RemoteTier::handle(PeerId, ReceiveFailed& failed) {
  const auto found = requests_.find(failed.token);
  if (found == requests_.end()) return;
  found->second.landing = false;
  settle(failed.token);
}

void RemoteTier::handle(PeerId, Sent& sent) {
  const auto send = sends_.extract(sent.id);
  if (send.empty()) return;
  requests_.at(send.mapped()).sending = {};
  settle(send.mapped());
}

void RemoteTier::handle(PeerId, SendFailed& failed) {
  const auto send = sends_.extract(failed.id);
  if (send.empty()) return;
  Request& request = requests_.at(send.mapped());
  request.sending = {};
  request.broken = !request.answer;
  settle(send.mapped());
}

void RemoteTier::settle(std::uint64_t sequence) {
  const auto found = requests_.find(sequence);
  if (found == requests_.end()) return;
  Request& request = found->second;
  if ((!request.answer && !request.broken) || request.landing || request.sending != SendId{}) return;
  auto over = requests_.extract(found);
  ended(over.mapped());
}

// A request without an answer ends its connection: what else is under way there would wait as long.
bool RemoteTier::expire() {
  const std::uint64_t now = config_.clock->now_us();
  bool did = false;
  for (const auto& [sequence, request] : requests_) {
    if (request.deadline_us > now) break;  // in the order of their deadlines
    Node& node = nodes_[request.node];
    if (request.broken || request.answer || node.closing || node.peer == PeerId{}) continue;
    did = true;
    node.why = fmt::format("it did not answer within {}", exact_duration_us(config_.request_us));
    if (config_.missed && node.identity.id != NodeId{}) config_.missed(node.identity.id);
    close(node);
  }
  return did;
}

}  // namespace vmem::rdma
