#include "rdma/lending/memory_service/memory_service.hpp"

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "tiers/abilities.hpp"

namespace vmem::rdma {
namespace {

using wire::Answer;
using wire::Kind;

// Between checks for dead nodes and changed budgets.
constexpr std::uint64_t kLookUs = 5'000;
constexpr std::uint64_t kMostComing = 5'000'000;  // µs: longest wait for room of ending leases

wire::Ask no_more_than(wire::Ask ask, const Lease& has) {
  for (const wire::Medium medium : wire::kMedia)
    ask.bytes[medium] = std::min(ask.bytes[medium], has.quota(medium).granted);
  return ask;
}

}  // namespace

MemoryService::Parts::Parts(const ServiceConfig& config, Node& node, tiers::Workers& workers,
                            tiers::PinningTier* direct)
    : replies(config, node.transport(), node.peers(), statistics),
      store(config, statistics),
      leases(config, {store, replies, dead, workers, statistics}),
      traffic(config,
              {node.transport(), node.peers(), node.outbox(), leases, store, replies, workers, statistics, direct}) {}

Status MemoryService::start(Node& node) {
  node_ = &node;
  if (!config_.memory.empty()) {
    VMEM_ASSIGN(slab_, node.transport().register_slab(config_.memory));
  }
  workers_ = std::make_unique<tiers::Workers>("vmem-node-work", config_.workers,
                                              [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); });
  parts_.emplace(config_, node, *workers_, direct_hbm(node.transport()));
  publish();
  node.add(*this);
  return {};
}

// Null: pages in HBM are staged. The tier ends its registrations when it is finished, before the
// transport ends.
tiers::PinningTier* MemoryService::direct_hbm(Transport& transport) const {
  tiers::PinningTier* const tier = tiers::Abilities(config_.hbm).pinning;
  if (tier == nullptr || !transport.sends_gpu_memory()) return nullptr;
  tier->register_memory([&transport](Bytes memory) -> Result<std::shared_ptr<void>> {
    VMEM_ASSIGN(auto slab, transport.register_gpu_slab(memory));
    return std::shared_ptr<Slab>(std::move(slab));
  });
  return tier;
}

void MemoryService::stop() {
  if (node_ == nullptr) return;
  if (parts_) node_->remove(*this);
  for (const wire::Medium medium : kStaged) {
    if (tiers::Tier* const tier = config_.tier(medium)) tier->finish();
  }
  workers_.reset();
  inbox_.clear();
  slab_.reset();
  node_ = nullptr;
}

// A forced close waits for no peer; memory is in use until every peer is gone.
void MemoryService::quiesce() {
  stopping_ = true;
  node_->peers().close_incoming();
  for (const PeerId peer : node_->outbox().waiting()) node_->peers().close(peer);
}

bool MemoryService::quiesced() const { return !node_->peers().has_incoming() && !parts_->traffic.sends_later(); }

void MemoryService::poke() noexcept {
  if (node_ != nullptr) node_->wake();
}

ServiceStatistics MemoryService::statistics() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void MemoryService::publish() {
  ServiceStatistics now = parts_->statistics;
  now.clients = parts_->leases.size();
  now.remembered = parts_->replies.clients();
  now.rejected += node_->peers().rejected();
  const std::lock_guard lock(mutex_);
  published_ = now;
}

bool MemoryService::step() {
  bool did = inbox_.run();
  did |= parts_->traffic.serve_tiers();
  if (config_.clock->now_us() >= look_us_) {
    did |= find_dead();
    did |= parts_->leases.follow_tiers();
  }
  did |= parts_->leases.wipe_ended();
  did |= parts_->leases.expire();
  did |= parts_->replies.flush();
  publish();
  return did;
}

// ---- connections ----

// Under another's id, a tenant could end that node's lease.
Status MemoryService::admit(const Connected& connected) {
  if (stopping_) return fail(VMEM_ERROR_UNSUPPORTED, "this node stops");
  const LeaseRef lease = parts_->leases.find(connected.node.id);
  if (lease && lease->tenant != connected.identity)
    return fail(VMEM_ERROR_INVALID_OPTION, "another tenant has a lease under this id");
  if (parts_->dead.ended(connected.node)) return fail(VMEM_ERROR_INVALID_OPTION, "its process has ended");
  return {};
}

void MemoryService::gone(const Peer& peer, const Gone&) {
  asked_us_.erase(peer.id);
  const NodeId id = peer.node.id;
  // Without a lease, nothing is kept for a node that is gone.
  if (!parts_->leases.find(id) && !node_->peers().has(id)) parts_->replies.forget(id);
  parts_->leases.disconnected(id, peer.id);
}

// ---- messages ----

std::span<const Kind> MemoryService::kinds() const {
  static constexpr std::array kKinds = {Kind::allocate, Kind::release, Kind::put, Kind::fetch, Kind::end};
  return kKinds;
}

std::optional<Claim> MemoryService::claim(const Peer& from, const wire::Parsed& message, std::uint64_t payload_bytes) {
  const auto at = wire::read_body<wire::PageAt>(message.body);
  if (!at || message.header.kind != Kind::put || at->page.bytes != payload_bytes) {
    ++parts_->statistics.rejected;
    return std::nullopt;
  }
  return parts_->traffic.claim(from.id, from.node.id, message.header, *at);
}

void MemoryService::request(const Peer& from, const wire::Parsed& message) {
  switch (message.header.kind) {
    case Kind::allocate:
      return on_ask(from, message.header, message.body);
    case Kind::fetch:
      return parts_->traffic.fetch(from.id, from.node.id, message.header, message.body);
    case Kind::end:
      return on_end(from, message.header, message.body);
    case Kind::release:
      return on_release(from, message.header, message.body);
    default:
      ++parts_->statistics.rejected;  // a page without its bytes
  }
}

void MemoryService::on_ask(const Peer& from, const wire::Header& header, ConstBytes body) {
  const auto ask = wire::read_ask(body, from.version);
  if (!ask || !parts_->replies.admit(from.id, header)) return;
  if (const auto lent = answer_to(*ask, from, header.request.sequence))
    parts_->replies.send(from.id, header.request, *lent);
  parts_->replies.abandon(header.request);  // a later ask may get a different answer
}

std::optional<wire::Lent> MemoryService::answer_to(const wire::Ask& ask, const Peer& asking, std::uint64_t sequence) {
  if (const LeaseRef old = parts_->leases.find(asking.node.id);
      old && old->client.incarnation != asking.node.incarnation)
    parts_->leases.end(asking.node.id);
  find_dead();
  LeaseRef lease = parts_->leases.find(asking.node.id);
  if (!lease && ask.lease != 0) return wire::Lent{.answer = Answer::unknown};
  // One for another lease was meant for another lender, or for what was there before.
  const bool other = lease && ask.lease != 0 && ask.lease != lease->id;
  if (lease && !other) {
    if (sequence <= lease->asked) return std::nullopt;
    lease->asked = sequence;
  }
  const bool resizes = lease && lease->resizable && lease->id == ask.lease;
  const bool drains = draining_.load(std::memory_order_relaxed);
  // Room of ended leases is being wiped.
  const bool may_grow = !drains && (!lease || resizes) && parts_->leases.may_grow(ask, lease.get());
  const bool more_soon = may_grow && waits(asking.id);
  if (!may_grow) asked_us_.erase(asking.id);
  if (!lease) {
    if (drains) return wire::Lent{.answer = Answer::drains};
    if (more_soon) return wire::Lent{.answer = Answer::again};
    lease = parts_->leases.grant(
        asking.node, asking.tenant, ask,
        asking.version < wire::kResizableVersion ? LeaseBook::Form::one_extent : LeaseBook::Form::resizable);
    if (!lease) return parts_->leases.full();
    lease->asked = sequence;
  } else if (resizes) {
    parts_->leases.resize(*lease, drains ? no_more_than(ask, *lease) : ask, sequence);
  }
  lease->peer = asking.id;
  parts_->dead.watch(asking.node, asking.process);
  wire::Lent lent = parts_->leases.lent(*lease);
  if (more_soon) lent.answer = Answer::again;
  if (drains) lent.room = {};
  return lent;
}

// True while the node may still be told to ask again; limited by kMostComing.
bool MemoryService::waits(PeerId asking) {
  const std::uint64_t now = config_.clock->now_us();
  return now - asked_us_.try_emplace(asking, now).first->second < kMostComing;
}

void MemoryService::on_release(const Peer& from, const wire::Header& header, ConstBytes body) {
  const auto at = wire::read_body<wire::PageAt>(body);
  const LeaseRef lease = parts_->leases.find(from.node.id);
  if (!at || !lease || lease->id != at->lease) return;
  if (at->page.version != 0) return parts_->traffic.release(*lease, *at, header.request.sequence);
  if (header.request.sequence < lease->asked) return;  // it is used again
  parts_->leases.end(from.node.id);
  parts_->replies.send(from.id, header.request, Kind::released, {});
}

// ---- nodes that have ended ----

// Any node may report the end of nodes with the same proved identity: see SECURITY.md.
void MemoryService::on_end(const Peer& from, const wire::Header& header, ConstBytes body) {
  const auto end = wire::read_body<wire::End>(body);
  if (!end || !parts_->replies.admit(from.id, header)) return;
  const NodeIdentity node{NodeId{end->node}, Incarnation{end->incarnation}};
  if (is_anothers(node.id, from.tenant)) {
    ++parts_->statistics.rejected;
    return;
  }
  parts_->dead.reported(node);
  end_dead(node);
  parts_->replies.send(from.id, header.request, Kind::ended, {}, ReplyBox::Repeat::remember);
}

bool MemoryService::is_anothers(NodeId node, const std::string& tenant) const {
  const LeaseRef lease = parts_->leases.find(node);
  return (lease && lease->tenant != tenant) || node_->peers().is_anothers(node, tenant);
}

bool MemoryService::find_dead() {
  look_us_ = config_.clock->now_us() + kLookUs;
  const auto found = parts_->dead.find();
  for (const NodeIdentity& each : found) end_dead(each);
  return !found.empty();
}

// The process has ended: closes its remaining connections and ends its lease.
void MemoryService::end_dead(NodeIdentity node) {
  node_->peers().close_node(node);
  const LeaseRef lease = parts_->leases.find(node.id);
  if (!lease || lease->client != node) return;
  if (const auto times = died_.next(); times.logged)
    VMEM_LOG_INFO("node {} ended; its pages are dropped ({} such nodes)", static_cast<std::uint64_t>(node.id),
                  times.count);
  parts_->leases.end(node.id);
}

}  // namespace vmem::rdma
