#include "rdma/lending/memory_service/memory_service.hpp"

#include "base/log.hpp"

namespace vmem::rdma {
namespace {

using wire::Answer;
using wire::Kind;

constexpr std::uint64_t kFarewellTurnUs = 1'000;
constexpr std::uint64_t kLookUs = 5'000;          // between checks for dead nodes and failed disks
constexpr std::uint64_t kMostComing = 5'000'000;  // µs: longest wait for room of ending leases

}  // namespace

MemoryService::Parts::Parts(const ServiceConfig& config, Transport& transport, tiers::Workers& workers)
    : replies(config, transport, statistics),
      store(config, statistics),
      leases(config, {store, replies, dead, workers, statistics}),
      clients(config, {transport, leases, replies, dead, statistics}),
      traffic(config, {transport, leases, store, replies, workers, statistics}) {}

Status MemoryService::start(Transport& transport) {
  transport_ = &transport;
  if (!config_.memory.empty()) {
    VMEM_ASSIGN(slab_, transport.register_slab(config_.memory));
  }
  workers_ = std::make_unique<tiers::Workers>("vmem-node-work", config_.workers,
                                              [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); });
  parts_.emplace(config_, transport, *workers_);
  publish();
  return {};
}

void MemoryService::stop() {
  if (transport_ == nullptr) return;
  stopping_ = true;
  // A forced close waits for no peer; memory is in use until every peer is gone.
  if (parts_) parts_->clients.close_all();
  while (parts_ && !parts_->clients.empty()) {
    const bool did = transport_->progress();
    if (!step() && !did) transport_->idle(kFarewellTurnUs);
  }
  if (config_.disk != nullptr) config_.disk->finish();
  workers_.reset();
  inbox_.clear();
  slab_.reset();
  transport_ = nullptr;
}

void MemoryService::poke() noexcept {
  if (transport_ != nullptr) transport_->wake();
}

ServiceStatistics MemoryService::statistics() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void MemoryService::publish() {
  ServiceStatistics now = parts_->statistics;
  now.clients = parts_->leases.size();
  now.remembered = parts_->replies.clients();
  const std::lock_guard lock(mutex_);
  published_ = now;
}

bool MemoryService::step() {
  bool did = events_.handle_some(
      *transport_, [&](Event& event) { std::visit([&](auto& what) { handle(event.peer, what); }, event.what); });
  did |= inbox_.run();
  did |= parts_->traffic.serve_disk();
  if (config_.clock->now_us() >= look_us_) {
    did |= find_dead();
    did |= parts_->leases.follow_disk();
  }
  did |= parts_->leases.wipe_ended();
  parts_->clients.close_silent();
  did |= parts_->leases.expire();
  did |= parts_->replies.flush();
  publish();
  return did;
}

void MemoryService::handle(PeerId peer, const Connected& connected) {
  if (stopping_) return transport_->close(peer);
  parts_->clients.connected(peer, connected);
}

// ---- messages ----

std::optional<Claim> MemoryService::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  const auto parsed = wire::parse(header);
  const auto at = parsed ? wire::read_body<wire::PageAt>(parsed->body) : std::nullopt;
  if (!at || parsed->header.kind != Kind::put || at->page.bytes != payload_bytes) {
    ++parts_->statistics.rejected;
    return std::nullopt;
  }
  if (!parts_->clients.is_from(peer, parsed->header)) return std::nullopt;
  return parts_->traffic.claim(peer, parts_->clients.at(peer).node.id, parsed->header, *at);
}

void MemoryService::handle(PeerId peer, const Message& message) {
  if (message.token != 0) return parts_->traffic.landed(message.token);
  const auto parsed = wire::parse(message.header);
  if (!parsed) {
    ++parts_->statistics.rejected;
    return;
  }
  if (!parts_->clients.is_from(peer, parsed->header)) return;
  switch (parsed->header.kind) {
    case Kind::ping:
      return parts_->replies.send(peer, parsed->header.request, Kind::pong, {});
    case Kind::allocate:
      return on_ask(peer, parsed->header, parsed->body);
    case Kind::fetch:
      return parts_->traffic.fetch(peer, parts_->clients.at(peer).node.id, parsed->header, parsed->body);
    case Kind::end:
      return on_end(peer, parsed->header, parsed->body);
    case Kind::release:
      return on_release(peer, parsed->header, parsed->body);
    default:
      ++parts_->statistics.rejected;  // not a request, or one without its page
  }
}

void MemoryService::on_ask(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto ask = wire::read_body<wire::Ask>(body);
  if (!ask || !parts_->replies.admit(peer, header)) return;
  const wire::Lent lent = answer_to(*ask, peer);
  parts_->replies.send(peer, header.request, Kind::allocated, wire::body_of(lent));
  parts_->replies.abandon(header.request);  // a later ask may get a different answer
}

wire::Lent MemoryService::answer_to(const wire::Ask& ask, PeerId peer) {
  ClientBook::Client& asking = parts_->clients.at(peer);
  if (const LeaseRef old = parts_->leases.find(asking.node.id);
      old && old->client.incarnation != asking.node.incarnation)
    parts_->leases.end(asking.node.id);
  find_dead();
  LeaseRef lease = parts_->leases.find(asking.node.id);
  if (!lease) {
    // Room of ended leases is being wiped.
    if (parts_->leases.may_grow(ask) && waits(asking)) return {.answer = Answer::again};
    lease = parts_->leases.grant(asking.node, asking.tenant, ask);
    if (!lease) return parts_->leases.full();
  }
  lease->peer = peer;
  parts_->dead.watch(asking.node, asking.process);
  return {.lease = lease->id, .memory_bytes = lease->bytes, .disk_bytes = lease->disk_bytes};
}

// True while the node may still be told to ask again; limited by kMostComing.
bool MemoryService::waits(ClientBook::Client& asking) {
  const std::uint64_t now = config_.clock->now_us();
  if (!asking.asked_us) asking.asked_us = now;
  return now - *asking.asked_us < kMostComing;
}

void MemoryService::on_release(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto at = wire::read_body<wire::PageAt>(body);
  const NodeId client = parts_->clients.at(peer).node.id;
  const LeaseRef lease = parts_->leases.find(client);
  if (!at || !lease || lease->id != at->lease) return;
  if (at->page.version != 0) return parts_->traffic.release(*lease, *at, header.request.sequence);
  parts_->leases.end(client);
  parts_->replies.send(peer, header.request, Kind::released, {});
}

// ---- nodes that have ended ----

// Any node may report the end of nodes with the same proved identity: see SECURITY.md.
void MemoryService::on_end(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto end = wire::read_body<wire::End>(body);
  if (!end || !parts_->replies.admit(peer, header)) return;
  const NodeIdentity node{NodeId{end->node}, Incarnation{end->incarnation}};
  if (parts_->clients.is_anothers(node.id, parts_->clients.at(peer).tenant)) {
    ++parts_->statistics.rejected;
    return;
  }
  parts_->dead.reported(node);
  end_dead(node);
  parts_->replies.send(peer, header.request, Kind::ended, {}, ReplyBox::Repeat::remember);
}

bool MemoryService::find_dead() {
  look_us_ = config_.clock->now_us() + kLookUs;
  const auto found = parts_->dead.find();
  for (const NodeIdentity& each : found) end_dead(each);
  return !found.empty();
}

// The process has ended: closes its remaining connections and ends its lease.
void MemoryService::end_dead(NodeIdentity node) {
  parts_->clients.close_node(node);
  const LeaseRef lease = parts_->leases.find(node.id);
  if (!lease || lease->client != node) return;
  if (const auto times = died_.next(); times.logged)
    VMEM_LOG_INFO("node {} ended; its pages are dropped ({} such nodes)", static_cast<std::uint64_t>(node.id),
                  times.count);
  parts_->leases.end(node.id);
}

}  // namespace vmem::rdma
