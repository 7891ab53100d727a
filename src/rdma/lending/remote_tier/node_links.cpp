#include "rdma/lending/remote_tier/node_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/counted.hpp"
#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::rdma {

using wire::Answer;
using wire::Kind;

namespace {

constexpr std::uint64_t kBeforeAskingAgainUs = 50'000;
constexpr std::uint64_t kBeforeFullAgainUs = 1'000'000;
constexpr std::uint64_t kLookUs = 5'000;  // between checks for ended lenders

Obstacle obstacle_of(int error, Obstacle otherwise) {
  switch (error) {
    case ECONNREFUSED:
      return Obstacle::nobody_listens;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ETIMEDOUT:
      return Obstacle::unreachable;
    default:
      return otherwise;
  }
}

std::uint64_t number(NodeIdentity node) { return static_cast<std::uint64_t>(node.id); }

std::string full_words(const wire::Lent& lent) {
  std::string words = fmt::format("{} of {} that it lends are leased to {}", format_bytes(lent.leased_bytes),
                                  format_bytes(lent.lendable_bytes), counted(lent.nodes, "node", "nodes"));
  if (lent.holder == 0) return words;
  words += fmt::format(", {} of them to node {}, which is ", format_bytes(lent.holder_bytes), lent.holder);
  if (lent.holder_left_us == 0) return words + "connected: end that program, or have the daemon lend more";
  return words + fmt::format("gone, and has it for {} more if its end is not seen (the daemon's --grace)",
                             exact_duration_us((lent.holder_left_us + 999'999) / 1'000'000 * 1'000'000));
}

}  // namespace

NodeLinks::NodeLinks(const RemoteConfig& config, Parts parts)
    : config_(config),
      transport_(parts.transport),
      requests_(parts.requests),
      placer_(parts.placer),
      pages_(parts.pages),
      contacts_(parts.contacts),
      counters_(parts.counters) {
  for (const std::string& address : config_.peers) links_.emplace_back().address = address;
}

NodeLinks::Link* NodeLinks::find(PeerId peer) {
  const auto found = std::ranges::find(links_, peer, &Link::peer);
  return peer == PeerId{} || found == links_.end() ? nullptr : &*found;
}

// ---- connecting ----

bool NodeLinks::keep_connected() {
  bool did = false;
  const std::uint64_t now = config_.clock->now_us();
  for (Link& link : links_) {
    const bool quiet =
        link.state == Link::State::ready && !link.pinged && !link.closing && now - link.heard_us >= config_.ping_us;
    if (quiet) ping(link);
    if (link.state == Link::State::asking && link.ask_us != 0 && now >= link.ask_us) ask(link);
    if (link.state != Link::State::away || now < link.again_us || leaving_) continue;
    did = true;
    connect(link);
  }
  return did;
}

void NodeLinks::connect(Link& link) {
  const std::uint64_t now = config_.clock->now_us();
  link.closing = false;
  link.obstacle = Obstacle::none;
  const auto peer = transport_.connect(link.address, now + config_.request_us);
  if (peer) {
    link.peer = *peer;
    link.state = Link::State::connecting;
    return;
  }
  link.why = peer.error().message;
  link.again_us = now + config_.reconnect_us;
  contacts_.failed(index_of(link), link.why, link.obstacle);
}

void NodeLinks::ping(Link& link) { link.pinged = send(link, {.kind = Kind::ping}, Requests::Reply::expected, {}); }

void NodeLinks::ask(Link& link) {
  const wire::Ask ask{config_.borrow_bytes, config_.borrow_bytes};
  link.ask_us = config_.clock->now_us() + kBeforeAskingAgainUs;
  if (send(link, {.kind = Kind::allocate}, Requests::Reply::expected, wire::body_of(ask))) link.ask_us = 0;
}

bool NodeLinks::send(Link& link, Request request, Requests::Reply reply, ConstBytes body, Bytes payload) {
  request.node = index_of(link);
  request.peer = link.peer;
  return requests_.send(std::move(request), reply, link.address, body, payload);
}

bool NodeLinks::send(Request request, ConstBytes body, Bytes payload) {
  Link& link = links_[request.node];
  return send(link, std::move(request), Requests::Reply::expected, body, payload);
}

void NodeLinks::connected(PeerId peer, const Connected& connected) {
  Link* const link = find(peer);
  if (link == nullptr) return;
  if (const auto allowed = config_.heard ? config_.heard(link->address, connected.node) : Status{}; !allowed) {
    link->why = allowed.error().message;
    if (const auto times = unused_.next(); times.logged)
      VMEM_LOG_WARN("the node at {} is not used: {} ({} such refusals)", link->address, link->why, times.count);
    return close(*link);
  }
  if (link->identity != connected.node) {
    const bool same_node = link->identity.id == connected.node.id;
    if (link->lease != 0)
      lose_lease(*link,
                 same_node ? "it was started anew, without what it held" : "another node answers at its address");
    dead_.forget(link->identity.id);
  }
  link->identity = connected.node;
  dead_.watch(connected.node, connected.process);
  link->path = connected.path;
  link->state = Link::State::asking;
  ask(*link);
}

void NodeLinks::heard(PeerId peer) {
  if (Link* const link = find(peer)) link->heard_us = config_.clock->now_us();
}

// ---- leases ----

void NodeLinks::lent(std::uint32_t node, const wire::Lent& lent) {
  Link& link = links_[node];
  if (link.state != Link::State::asking || link.closing) return;
  if (lent.answer == Answer::again) {
    link.ask_us = config_.clock->now_us() + kBeforeAskingAgainUs;
    return;
  }
  if (lent.answer != Answer::done) return refuse(link, lent);
  take_lease(link, lent);
}

void NodeLinks::refuse(Link& link, const wire::Lent& lent) {
  link.why = lent.answer == Answer::full ? full_words(lent) : std::string(wire::answer_words(lent.answer));
  link.obstacle = Obstacle::full;
  link.rest_us = kBeforeFullAgainUs;
  close(link);
}

void NodeLinks::take_lease(Link& link, const wire::Lent& lent) {
  if (link.lease != lent.lease && link.lease != 0) lose_lease(link, "it dropped what it held for this node");
  link.lease = lent.lease;
  placer_.set_room(index_of(link), lent);
  link.state = Link::State::ready;
  link.heard_us = config_.clock->now_us();
  link.pinged = false;
  link.why.clear();
  if (std::exchange(link.was_ready, true)) {
    counters_.add(&RemoteStatistics::reconnects);
    if (const auto times = back_.next(); times.logged)
      VMEM_LOG_INFO("node {} at {} is back, by {} ({} so far)", number(link.identity), link.address, link.path,
                    times.count);
  }
  contacts_.reached(index_of(link), link.path);
}

// A disk of the lender failed. Its pages are still fetched as long as the disk can be read.
void NodeLinks::shrunk(PeerId peer, const wire::Lent& lent) {
  Link* const link = find(peer);
  if (link == nullptr || link->state != Link::State::ready || link->lease != lent.lease) return;
  const auto before = placer_.shrink_disk(index_of(*link), lent.disk_bytes);
  if (!before) return;
  if (const auto times = less_.next(); times.logged)
    VMEM_LOG_WARN("a disk of node {} at {} failed: of {} there, {} are left ({} such failures)", number(link->identity),
                  link->address, format_bytes(*before), format_bytes(lent.disk_bytes), times.count);
}

// Invalidates the copies on the node.
void NodeLinks::lose_lease(Link& link, const std::string& why) {
  const StoredPages::Loss loss = pages_.lose(index_of(link), link.lease, placer_);
  placer_.drop(index_of(link));
  link.lease = 0;
  if (loss.copies == 0) return;
  counters_.add(&RemoteStatistics::copies_lost, loss.copies);
  if (const auto times = lost_.next(); times.logged)
    VMEM_LOG_ERROR("node {} at {} is lost ({}), with {} copies of pages, {} of them the last ({} such losses)",
                   number(link.identity), link.address, why, loss.copies, loss.last, times.count);
}

// A place ends with its lease, and a lease with the tier.
void NodeLinks::release(const CopyPlace& copy) {
  Link& link = links_[copy.node];
  const bool gone = leaving_ || copy.lease == 0 || link.lease != copy.lease;
  if (gone || link.state != Link::State::ready) return;
  wire::PageAt at{.lease = copy.lease, .offset = copy.offset};
  at.page.version = 1;  // any version but 0, which means the lease
  send(link, {.kind = Kind::release}, Requests::Reply::none, wire::body_of(at));
}

std::optional<std::uint32_t> NodeLinks::return_leases() {
  if (std::exchange(leaving_, true)) return std::nullopt;
  std::uint32_t sent = 0;
  for (Link& link : links_) {
    if (link.state != Link::State::ready) continue;
    const wire::PageAt all{.lease = link.lease};
    sent += send(link, {.kind = Kind::release}, Requests::Reply::expected, wire::body_of(all)) ? 1 : 0;
  }
  return sent;
}

// ---- ends ----

// Closes the connection too: a forked child of the lender may hold it open. But a node in state
// `connecting` is reaching another process.
bool NodeLinks::find_dead() {
  if (config_.clock->now_us() < look_us_) return false;
  look_us_ = config_.clock->now_us() + kLookUs;
  const auto found = dead_.find();
  for (Link& link : links_) {
    if (std::ranges::find(found, link.identity) == found.end()) continue;
    link.why = "its process has ended";
    if (link.lease != 0) lose_lease(link, link.why);
    if (link.state != Link::State::connecting) close(link);
  }
  return !found.empty();
}

void NodeLinks::gone(PeerId peer, Gone& gone) {
  Link* const link = find(peer);
  if (link == nullptr) return;
  const bool was_ready = link->state == Link::State::ready;
  if (gone.reason != Reason::closed || link->why.empty()) link->why = gone.error.message;
  link->obstacle = obstacle_of(gone.error.native, link->obstacle);
  if (was_ready) {
    if (const auto times = broken_.next(); times.logged)
      VMEM_LOG_WARN("the connection to node {} at {} is gone: {} ({} so far)", number(link->identity), link->address,
                    link->why, times.count);
    placer_.set_away(index_of(*link));
  }
  if (gone.reason == Reason::timeout) missed(*link);
  link->state = Link::State::away;
  link->peer = {};
  const std::uint64_t rest = was_ready ? 0 : std::max(config_.reconnect_us, std::exchange(link->rest_us, 0));
  link->again_us = config_.clock->now_us() + rest;
  contacts_.failed(index_of(*link), link->why, link->obstacle);
  requests_.break_all(index_of(*link));
}

bool NodeLinks::expire() {
  bool did = false;
  requests_.for_late([&](std::uint32_t node) {
    Link& link = links_[node];
    if (link.closing || link.peer == PeerId{}) return;
    did = true;
    link.why = fmt::format("it did not answer within {}", exact_duration_us(config_.request_us));
    missed(link);
    close(link);
  });
  return did;
}

void NodeLinks::missed(const Link& link) {
  if (config_.missed && link.identity.id != NodeId{}) config_.missed(link.identity.id);
}

void NodeLinks::close(Link& link) {
  if (link.peer == PeerId{} || std::exchange(link.closing, true)) return;
  transport_.close(link.peer);
}

bool NodeLinks::is_ready(std::uint32_t node) const {
  return links_[node].state == Link::State::ready && !links_[node].closing;
}

}  // namespace vmem::rdma
