#include "rdma/memory_service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"

namespace vmem::rdma {
namespace {

using pagetable::kGranuleBytes;
using wire::Answer;
using wire::Kind;

constexpr std::uint64_t kFarewellTurnUs = 1'000;
constexpr std::uint64_t kLookUs = 5'000;          // between looks for dead nodes, and disks
constexpr std::uint64_t kMostComing = 5'000'000;  // for room that ending leases give back

bool on_disk(std::uint64_t offset) { return offset >= wire::kDiskOffset; }

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

// Leases of different lenders, and of one's former lives, differ.
std::uint64_t random_start() {
  std::random_device source;
  return (std::uint64_t{source()} << 32 | source()) & ~std::uint64_t{0xffff};
}

}  // namespace

MemoryService::MemoryService(Config config) : config_(config), last_lease_(random_start()) {
  const std::uint64_t lent = config_.memory.size() - config_.staging_bytes;
  room_ = Extents(0, lent);
  staging_ = Extents(lent, config_.staging_bytes);
}

MemoryService::~MemoryService() { stop(); }

Status MemoryService::start(Transport& transport) {
  transport_ = &transport;
  if (!config_.memory.empty()) {
    VMEM_ASSIGN(slab_, transport.register_slab(config_.memory));
  }
  workers_ = std::make_unique<Workers>(config_.workers, [this] { poke(); });
  publish();
  return {};
}

void MemoryService::stop() {
  if (transport_ == nullptr) return;
  stopping_ = true;
  for (auto& [peer, known] : peers_) close(peer, known);
  // Closed by force, they wait for nobody; until then their memory is in use.
  while (!peers_.empty()) {
    const bool did = transport_->progress();
    if (!step() && !did) transport_->idle(kFarewellTurnUs);
  }
  if (config_.disk != nullptr) config_.disk->finish();
  workers_.reset();
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
  now_.clients = leases_.size();
  now_.remembered = replies_.clients();
  const std::lock_guard lock(mutex_);
  published_ = now_;
}

bool MemoryService::step() {
  bool did = events_.handle_some(
      *transport_, [&](Event& event) { std::visit([&](auto& what) { handle(event.peer, what); }, event.what); });
  did |= workers_->finish();
  did |= serve_disk();
  if (config_.clock->now_us() >= look_us_) {
    did |= find_dead();
    did |= follow_disk();
  }
  did |= end_leases();
  did |= expire();
  did |= empty_outbox();
  publish();
  return did;
}

// ---- who is there ----

void MemoryService::handle(PeerId peer, Connected& connected) {
  if (stopping_) return transport_->close(peer);
  const NodeIdentity node = connected.node;
  // Node ids are what nodes say of themselves: with another's, a tenant would end its lease.
  if (const auto lease = leases_.find(node.id); lease != leases_.end() && lease->second->tenant != connected.identity)
    return refuse(peer, connected);
  for (auto& [other, known] : peers_) {
    if (known.node.id != node.id) continue;
    if (known.tenant != connected.identity) return refuse(peer, connected);
    // The newer incarnation stays; of the same one, the newer connection.
    if (node.incarnation < known.node.incarnation) {
      ++now_.rejected;
      return transport_->close(peer);
    }
    close(other, known);
  }
  if (dead_.ended(node)) return transport_->close(peer);
  peers_[peer] = {
      .node = node, .tenant = connected.identity, .heard_us = config_.clock->now_us(), .process = connected.process};
  if (const auto times = came_.next(); times.logged)
    VMEM_LOG_INFO("node {} connected, by {} ({} connections so far)", number(node.id), connected.path, times.count);
}

void MemoryService::refuse(PeerId peer, const Connected& connected) {
  ++now_.rejected;
  if (const auto times = refused_.next(); times.logged)
    VMEM_LOG_WARN("'{}' connected as node {}, which is another's id: refused ({} so far)", connected.identity,
                  number(connected.node.id), times.count);
  transport_->close(peer);
}

// Once: it takes the transport a moment.
void MemoryService::close(PeerId peer, Peer& known) {
  if (!std::exchange(known.closing, true)) transport_->close(peer);
}

void MemoryService::handle(PeerId peer, Gone& gone) {
  const auto known = peers_.extract(peer);
  if (known.empty()) return;
  if (const auto times = went_.next(); times.logged)
    VMEM_LOG_INFO("node {} is gone: {} ({} so far)", number(known.mapped().node.id), gone.error.message, times.count);
  const NodeId id = known.mapped().node.id;
  const auto lease = leases_.find(id);
  const bool is_there = std::ranges::any_of(peers_, [&](const auto& each) { return each.second.node.id == id; });
  if (lease == leases_.end() && !is_there) replies_.forget(number(id));  // of who borrows nothing, nothing is kept
  if (lease == leases_.end() || lease->second->peer != peer) return;
  lease->second->peer = {};
  lease->second->gone_us = config_.clock->now_us();
}

bool MemoryService::is_from(PeerId peer, const wire::Header& header) {
  const auto known = peers_.find(peer);
  const bool own =
      known != peers_.end() && header.request.client == number(known->second.node.id) &&
      static_cast<std::uint64_t>(header.request.epoch) == static_cast<std::uint64_t>(known->second.node.incarnation);
  if (own) known->second.heard_us = config_.clock->now_us();
  now_.rejected += own ? 0 : 1;
  return own;
}

// Whether it is to be carried out. The answer that was given before goes out again.
bool MemoryService::admit(PeerId peer, const wire::Header& header) {
  const ReplyCache::Verdict verdict = replies_.arrived(header.request);
  if (verdict == ReplyCache::Verdict::carry_out) return true;
  if (verdict == ReplyCache::Verdict::stale) {
    ++now_.rejected;
    // Overtaken by many others, which need not be answered: who still waits for it asks again, under a later number.
    const bool page = header.kind == Kind::put || header.kind == Kind::fetch;
    const wire::Reply again{.answer = Answer::again};
    if (page) {
      send(peer, header.request, header.kind == Kind::put ? Kind::put_done : Kind::fetched, wire::body_of(again),
           false);
    }
  }
  if (verdict != ReplyCache::Verdict::answered) return false;
  const ConstBytes reply = replies_.reply(header.request);
  outbox_.emplace_back(peer, std::vector<std::byte>(reply.begin(), reply.end()));
  return false;
}

bool MemoryService::expire() {
  const std::uint64_t now = config_.clock->now_us();
  for (auto& [peer, known] : peers_) {
    if (now - known.heard_us > config_.silence_us) close(peer, known);
  }
  std::vector<NodeId> over;
  for (const auto& [client, lease] : leases_) {
    if (lease->peer == PeerId{} && now - lease->gone_us > config_.grace_us) over.push_back(client);
  }
  for (const NodeId client : over) {
    if (const auto times = ended_.next(); times.logged)
      VMEM_LOG_INFO("node {} did not come back; its pages are dropped ({} such nodes)", number(client), times.count);
    end_lease(client);
  }
  return !over.empty();
}

// ---- messages ----

void MemoryService::handle(PeerId peer, Message& message) {
  if (message.token != 0) {
    if (auto landed = landing_.extract(message.token); !landed.empty()) arrived(landed.mapped());
    return;
  }
  const auto parsed = wire::parse(message.header);
  if (!parsed) {
    ++now_.rejected;
    return;
  }
  if (!is_from(peer, parsed->header)) return;
  switch (parsed->header.kind) {
    case Kind::ping:
      return send(peer, parsed->header.request, Kind::pong, {}, false);
    case Kind::allocate:
      return on_ask(peer, parsed->header, parsed->body);
    case Kind::fetch:
      return on_fetch(peer, parsed->header, parsed->body);
    case Kind::end:
      return on_end(peer, parsed->header, parsed->body);
    case Kind::release:
      return on_release(peer, parsed->header, parsed->body);
    default:
      ++now_.rejected;  // no request, or one without its page
  }
}

void MemoryService::send(PeerId peer, const wire::RequestId& request, Kind kind, ConstBytes body, bool remember) {
  auto bytes = wire::write({.kind = kind, .request = request}, body);
  if (!bytes) {
    if (const auto times = unwritten_.next(); times.logged)
      VMEM_LOG_ERROR("a reply could not be written: {} ({} so far)", bytes.error().message, times.count);
    return;
  }
  outbox_.emplace_back(peer, *bytes);
  if (remember) replies_.answered(request, *std::move(bytes));
}

// What claim() has to say waits until it is over: it is called by the transport.
bool MemoryService::empty_outbox() {
  const bool any = !outbox_.empty();
  for (const auto& [peer, header] : std::exchange(outbox_, {})) {
    Send reply{.peer = peer, .header = header, .deadline_us = config_.clock->now_us() + config_.request_us};
    (void)transport_->send({&reply, 1});  // a peer that is gone asks again
  }
  return any;
}

void MemoryService::answer(const Passage& passage, Answer answer) {
  const wire::Reply reply{.answer = answer, .lease = passage.at.lease, .offset = passage.at.offset};
  // What may turn out otherwise another time is not what was answered once and for all.
  const bool final = passage.in && answer == Answer::done;
  send(passage.peer, passage.request, passage.in ? Kind::put_done : Kind::fetched, wire::body_of(reply), final);
  if (!final) replies_.abandoned(passage.request);
}

void MemoryService::on_ask(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto ask = wire::read_body<wire::Ask>(body);
  if (!ask || !admit(peer, header)) return;
  const NodeIdentity client = peers_.at(peer).node;
  if (const auto lease = leases_.find(client.id);
      lease != leases_.end() && lease->second->client.incarnation != client.incarnation)
    end_lease(client.id);
  find_dead();
  const auto known = leases_.find(client.id);
  Peer& asking = peers_.at(peer);
  wire::Lent lent;
  LeaseRef lease;
  if (known != leases_.end()) {
    lease = known->second;
  } else if (comes(*ask) && waits(asking)) {
    // What others had is wiped first.
    lent.answer = Answer::again;
  } else {
    lease = grant(client, asking.tenant, *ask);
    if (!lease) lent = full();
  }
  if (lease) {
    lease->peer = peer;
    dead_.watch(client, asking.process);
    lent.lease = lease->id;
    lent.memory_bytes = lease->bytes;
    lent.disk_bytes = lease->disk_bytes;
  }
  send(peer, header.request, Kind::allocated, wire::body_of(lent), false);
  replies_.abandoned(header.request);  // asked again, it may be otherwise
}

// Any node may say it of those that have proved the same secret: see SECURITY.md.
void MemoryService::on_end(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto end = wire::read_body<wire::End>(body);
  if (!end || !admit(peer, header)) return;
  const NodeIdentity node{NodeId{end->node}, Incarnation{end->incarnation}};
  const std::string& tenant = peers_.at(peer).tenant;
  const auto is_anothers = [&](const auto& each) {
    return each.second.node.id == node.id && each.second.tenant != tenant;
  };
  const auto lease = leases_.find(node.id);
  if ((lease != leases_.end() && lease->second->tenant != tenant) || std::ranges::any_of(peers_, is_anothers)) {
    ++now_.rejected;
    return;
  }
  dead_.reported(node);
  end_dead(node);
  send(peer, header.request, Kind::ended, {}, true);
}

void MemoryService::on_release(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto at = wire::read_body<wire::PageAt>(body);
  const auto lease = leases_.find(peers_.at(peer).node.id);
  if (!at || lease == leases_.end() || lease->second->id != at->lease) return;
  if (at->page.version == 0) {
    end_lease(lease->first);
    return send(peer, header.request, Kind::released, {}, false);
  }
  const auto entry = lease->second->entries.find(at->offset);
  if (entry == lease->second->entries.end() || entry->second.sequence > header.request.sequence) return;
  if (entry->second.state == Entry::State::arriving) return;  // written anew by who released it: late
  entry->second.released = true;
  if (entry->second.readers == 0) erase(*lease->second, entry);
}

// ---- leases ----

std::uint64_t MemoryService::share(std::uint64_t asked, std::uint64_t there) const {
  return std::min({asked, there, config_.client_bytes}) / kGranuleBytes * kGranuleBytes;
}

// None while leases cover more than the disk still offers.
std::uint64_t MemoryService::free_disk_bytes() const {
  if (config_.disk == nullptr) return 0;
  const std::uint64_t there = config_.disk->usage().budget_bytes;
  return there - std::min(there, now_.disk_lent_bytes);
}

// Whether more will be there when leases have ended that are about to.
bool MemoryService::comes(const wire::Ask& ask) const {
  if (wiping_ == 0 && ending_.empty()) return false;
  const std::uint64_t lent = config_.memory.size() - config_.staging_bytes;
  const std::uint64_t on_disks = config_.disk == nullptr ? 0 : config_.disk->usage().budget_bytes;
  return share(ask.memory_bytes, room_.largest_bytes()) < share(ask.memory_bytes, lent) ||
         share(ask.disk_bytes, free_disk_bytes()) < share(ask.disk_bytes, on_disks);
}

// Whether a node that is told to ask again may still be told so.
bool MemoryService::waits(Peer& asking) {
  const std::uint64_t now = config_.clock->now_us();
  if (!asking.asked_us) asking.asked_us = now;
  return now - *asking.asked_us < kMostComing;
}

// Who has what there is: the node that has most, one that is gone before others.
wire::Lent MemoryService::full() const {
  wire::Lent lent{.answer = Answer::full, .nodes = static_cast<std::uint32_t>(leases_.size())};
  lent.lendable_bytes = config_.memory.size() - config_.staging_bytes;
  if (config_.disk != nullptr) lent.lendable_bytes += config_.disk->usage().budget_bytes;
  lent.leased_bytes = now_.lent_bytes + now_.disk_lent_bytes;
  const auto rank = [](const auto& each) {
    return std::pair(each.second->peer == PeerId{}, each.second->bytes + each.second->disk_bytes);
  };
  const auto most = std::ranges::max_element(leases_, {}, rank);
  if (most == leases_.end()) return lent;
  const Lease& lease = *most->second;
  lent.holder = number(most->first);
  lent.holder_bytes = lease.bytes + lease.disk_bytes;
  if (lease.peer == PeerId{}) {
    const std::uint64_t gone_for = config_.clock->now_us() - lease.gone_us;
    lent.holder_left_us = std::max<std::uint64_t>(1, config_.grace_us - std::min(config_.grace_us, gone_for));
  }
  return lent;
}

MemoryService::LeaseRef MemoryService::grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask) {
  const std::uint64_t bytes = share(ask.memory_bytes, room_.largest_bytes());
  const std::uint64_t disk_bytes = share(ask.disk_bytes, free_disk_bytes());
  if (bytes + disk_bytes == 0) return nullptr;
  auto lease = std::make_shared<Lease>();
  lease->id = ++last_lease_;
  lease->client = client;
  lease->tenant = tenant;
  lease->bytes = bytes;
  lease->disk_range = lease->disk_bytes = disk_bytes;
  lease->first = room_.take(bytes).value_or(0);
  now_.lent_bytes += bytes;
  now_.disk_lent_bytes += disk_bytes;
  leases_[client.id] = lease;
  if (const auto times = leased_.next(); times.logged)
    VMEM_LOG_INFO("node {} has {} of memory and {} on disks ({} leases so far)", number(client.id), format_bytes(bytes),
                  format_bytes(disk_bytes), times.count);
  return lease;
}

// Its memory goes to others when nothing uses it any more, and after it was wiped.
void MemoryService::end_lease(NodeId client) {
  auto lease = leases_.extract(client);
  ending_.push_back(std::move(lease.mapped()));
  replies_.forget(number(client));
  dead_.forget(client);
}

// Its process has ended: what it is still connected by goes, and what it borrowed.
void MemoryService::end_dead(NodeIdentity node) {
  for (auto& [peer, known] : peers_) {
    if (known.node == node) close(peer, known);
  }
  const auto lease = leases_.find(node.id);
  if (lease == leases_.end() || lease->second->client != node) return;
  if (const auto times = died_.next(); times.logged)
    VMEM_LOG_INFO("node {} ended; its pages are dropped ({} such nodes)", number(node.id), times.count);
  end_lease(node.id);
}

bool MemoryService::find_dead() {
  look_us_ = config_.clock->now_us() + kLookUs;
  const auto found = dead_.find();
  for (const NodeIdentity& each : found) end_dead(each);
  return !found.empty();
}

bool MemoryService::end_leases() {
  bool did = false;
  for (auto each = ending_.begin(); each != ending_.end();) {
    const LeaseRef lease = *each;
    if (lease->busy != 0) {
      ++each;
      continue;
    }
    did = true;
    each = ending_.erase(each);
    while (!lease->entries.empty()) erase(*lease, lease->entries.begin());
    now_.disk_lent_bytes -= lease->disk_bytes;
    const Bytes dirty = config_.memory.subspan(lease->first, lease->touched);
    ++wiping_;
    workers_->post([dirty] { std::memset(dirty.data(), 0, dirty.size()); },  // cannot throw
                   [this, lease](Workers::Ended) {
                     --wiping_;
                     room_.give_back(lease->first, lease->bytes);
                     now_.lent_bytes -= lease->bytes;
                   });
  }
  return did;
}

// ---- pages that come ----

// What lay there goes, unless it is newer or in use.
Answer MemoryService::make_place(Lease& lease, const wire::PageAt& at, std::uint64_t sequence) {
  const std::uint64_t bytes = at.page.bytes;
  const std::uint64_t begin = on_disk(at.offset) ? at.offset - wire::kDiskOffset : at.offset;
  const std::uint64_t room = on_disk(at.offset) ? lease.disk_range : lease.bytes;
  if (bytes == 0 || at.page.version == 0 || begin % kGranuleBytes != 0 || bytes % kGranuleBytes != 0 || begin > room ||
      bytes > room - begin)
    return Answer::refused;
  auto first = lease.entries.upper_bound(at.offset);
  if (first != lease.entries.begin() && std::prev(first)->first + std::prev(first)->second.page.bytes > at.offset)
    --first;
  for (auto each = first; each != lease.entries.end() && each->first < at.offset + bytes; ++each) {
    if (each->second.sequence >= sequence) return Answer::refused;
    if (each->second.state == Entry::State::arriving || each->second.readers != 0) return Answer::again;
  }
  while (first != lease.entries.end() && first->first < at.offset + bytes) {
    const auto old = first++;
    erase(lease, old);
  }
  return Answer::done;
}

void MemoryService::erase(Lease& lease, std::map<std::uint64_t, Entry>::iterator entry) {
  const Entry& page = entry->second;
  if (page.disk_slot) config_.disk->release(*page.disk_slot);
  if (page.state == Entry::State::held) {
    (on_disk(entry->first) ? now_.disk_held_bytes : now_.held_bytes) -= page.page.bytes;
    --now_.pages;
  }
  lease.entries.erase(entry);
}

bool MemoryService::give_staging(Passage& passage) {
  passage.staging = staging_.take(passage.at.page.bytes);
  if (passage.staging) passage.memory = config_.memory.subspan(*passage.staging, passage.at.page.bytes);
  return passage.staging.has_value();
}

void MemoryService::take_staging(Passage& passage) {
  if (passage.staging) staging_.give_back(*passage.staging, passage.at.page.bytes);
  passage.staging.reset();
}

std::optional<Claim> MemoryService::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  const auto parsed = wire::parse(header);
  const auto at = parsed ? wire::read_body<wire::PageAt>(parsed->body) : std::nullopt;
  if (!at || parsed->header.kind != Kind::put || at->page.bytes != payload_bytes) {
    ++now_.rejected;
    return std::nullopt;
  }
  if (!is_from(peer, parsed->header)) return std::nullopt;
  const auto lease = leases_.find(peers_.at(peer).node.id);
  if (lease == leases_.end() || lease->second->id != at->lease) {
    ++now_.rejected;
    return std::nullopt;
  }
  if (!admit(peer, parsed->header)) return std::nullopt;
  auto passage = std::make_shared<Passage>(
      Passage{.lease = lease->second, .peer = peer, .request = parsed->header.request, .at = *at, .in = true});
  const std::uint64_t sequence = passage->request.sequence;
  Answer placed = make_place(*passage->lease, *at, sequence);
  if (placed == Answer::done && on_disk(at->offset) && !give_staging(*passage)) placed = Answer::again;
  if (placed != Answer::done) {
    answer(*passage, placed);
    return std::nullopt;
  }
  if (!on_disk(at->offset)) {
    passage->memory = config_.memory.subspan(passage->lease->first + at->offset, payload_bytes);
    passage->lease->touched = std::max(passage->lease->touched, at->offset + payload_bytes);
  }
  passage->lease->entries[at->offset] = {.page = at->page, .sequence = sequence};
  ++passage->lease->busy;
  landing_.emplace(++last_token_, passage);
  return Claim{passage->memory, last_token_, config_.clock->now_us() + config_.request_us};
}

MemoryService::Entry* MemoryService::entry_of(const Passage& passage) {
  const auto entry = passage.lease->entries.find(passage.at.offset);
  return entry == passage.lease->entries.end() ? nullptr : &entry->second;
}

void MemoryService::handle(PeerId, ReceiveFailed& failed) {
  const auto landed = landing_.extract(failed.token);
  if (!landed.empty()) end_put(landed.mapped(), Answer::again);
}

void MemoryService::arrived(const PassageRef& passage) {
  const auto good = std::make_shared<bool>();
  workers_->post([passage, good] { *good = passage->at.page.matches(passage->memory); },
                 [this, passage, good](Workers::Ended how) {
                   if (how == Workers::Ended::no_memory) return verified(passage, Answer::failed);
                   verified(passage, *good ? Answer::done : Answer::damaged);
                 });
}

// `failed`: there was no memory to look, which says nothing of the page.
void MemoryService::verified(const PassageRef& passage, Answer found) {
  now_.damaged += found == Answer::damaged ? 1 : 0;
  if (!passage->in) return found == Answer::done ? send_page(passage) : end_fetch(passage, found);
  if (found != Answer::done || !on_disk(passage->at.offset)) return end_put(passage, found);
  want_disk_slot_.push_back(passage);
}

void MemoryService::end_put(const PassageRef& passage, Answer put) {
  const auto at = passage->lease->entries.find(passage->at.offset);
  if (put == Answer::done) {
    at->second.state = Entry::State::held;
    (on_disk(at->first) ? now_.disk_held_bytes : now_.held_bytes) += at->second.page.bytes;
    ++now_.pages;
    now_.stored_bytes += at->second.page.bytes;
  } else {
    erase(*passage->lease, at);
  }
  take_staging(*passage);
  --passage->lease->busy;
  answer(*passage, put);
}

// ---- pages that go ----

void MemoryService::on_fetch(PeerId peer, const wire::Header& header, ConstBytes body) {
  const auto at = wire::read_body<wire::PageAt>(body);
  const auto lease = leases_.find(peers_.at(peer).node.id);
  if (!at || lease == leases_.end() || lease->second->id != at->lease) {
    ++now_.rejected;
    return;
  }
  if (!admit(peer, header)) return;
  auto passage =
      std::make_shared<Passage>(Passage{.lease = lease->second, .peer = peer, .request = header.request, .at = *at});
  Entry* const entry = entry_of(*passage);
  if (entry == nullptr || entry->page != at->page) return answer(*passage, Answer::unknown);
  const bool staged = !on_disk(at->offset) || (entry->state == Entry::State::held && give_staging(*passage));
  if (entry->state == Entry::State::arriving || !staged) return answer(*passage, Answer::again);
  ++entry->readers;
  ++passage->lease->busy;
  if (on_disk(at->offset)) return to_disk(passage, tiers::Direction::load, *entry->disk_slot);
  passage->memory = config_.memory.subspan(passage->lease->first + at->offset, at->page.bytes);
  // Who asked looks at what arrives; to look here as well would cost a third of what sending it does.
  if (at->doubted == 0) return send_page(passage);
  arrived(passage);
}

void MemoryService::send_page(const PassageRef& passage) {
  const wire::Reply reply{.lease = passage->at.lease, .offset = passage->at.offset};
  const auto header =
      wire::write({.kind = Kind::fetched, .request = passage->request, .payload_bytes = passage->memory.size()},
                  wire::body_of(reply));
  const ConstBytes payload[] = {passage->memory};
  Send page{.peer = passage->peer, .payload = payload, .deadline_us = config_.clock->now_us() + config_.request_us};
  if (header) page.header = *header;
  const Status posted = header ? transport_->send({&page, 1}) : Status(std::unexpected(header.error()));
  if (!posted) {
    if (const auto times = unsent_.next(); times.logged)
      VMEM_LOG_WARN("a page could not be sent back: {} ({} so far)", posted.error().message, times.count);
    return left(passage);
  }
  leaving_.emplace(page.id, passage);
}

void MemoryService::handle(PeerId, Sent& sent) {
  const auto page = leaving_.extract(sent.id);
  if (page.empty()) return;
  now_.fetched_bytes += page.mapped()->at.page.bytes;
  left(page.mapped());
}

void MemoryService::handle(PeerId, SendFailed& failed) {
  if (const auto page = leaving_.extract(failed.id); !page.empty()) left(page.mapped());
}

// Nothing reads its bytes any more.
void MemoryService::left(const PassageRef& passage) {
  take_staging(*passage);
  --passage->lease->busy;
  replies_.abandoned(passage->request);  // a page is not remembered: asked again, it is sent again
  const auto entry = passage->lease->entries.find(passage->at.offset);
  if (--entry->second.readers == 0 && entry->second.released) erase(*passage->lease, entry);
}

void MemoryService::end_fetch(const PassageRef& passage, Answer fetched) {
  // Only of what is damaged no fetch would end better.
  if (fetched == Answer::damaged) passage->lease->entries.find(passage->at.offset)->second.released = true;
  left(passage);
  answer(*passage, fetched);
}

// ---- the disk ----

void MemoryService::to_disk(const PassageRef& passage, tiers::Direction direction, tiers::SlotId slot) {
  tiers::Transfer transfer;
  transfer.page = passage->at.page.identity().page;
  transfer.version = passage->at.page.version;
  transfer.slot = slot;
  transfer.host = passage->memory.data();
  transfer.bytes = passage->memory.size();
  transfer.direction = direction;
  if (const auto submitted = config_.disk->submit({&transfer, 1}); !submitted) {
    disk_failed(submitted.error());
    return passage->in ? end_put(passage, Answer::failed) : end_fetch(passage, Answer::failed);
  }
  on_disk_.emplace(transfer.id, passage);
}

// A disk that dies fails every page that is on its way, and many more are sent.
void MemoryService::disk_failed(const Error& error) {
  if (const auto failure = disk_failures_.next(); failure.logged)
    VMEM_LOG_WARN("a page on disk: {} ({} such failures)", error.message, failure.count);
  (void)follow_disk();  // who sent the page hears of it before the answer
}

// A directory that went out of service takes room with it. Every lease gives up its part, since pages of all leases lie in
// all directories, and its borrower is told. What a lease has on the disk stays until it is released.
bool MemoryService::follow_disk() {
  const std::uint64_t lent = now_.disk_lent_bytes;
  const std::uint64_t there = config_.disk == nullptr ? 0 : config_.disk->usage().budget_bytes;
  if (there >= lent) return false;
  const auto shrink = [&](Lease& lease) {
    const auto part = static_cast<std::uint64_t>(static_cast<double>(lease.disk_bytes) / double(lent) * double(there));
    const std::uint64_t kept = std::min(lease.disk_bytes, part / kGranuleBytes * kGranuleBytes);
    now_.disk_lent_bytes -= lease.disk_bytes - kept;
    lease.disk_bytes = kept;
  };
  VMEM_LOG_WARN("a disk failed: of {} that are lent of disks, {} are left", format_bytes(lent), format_bytes(there));
  for (const LeaseRef& lease : ending_) shrink(*lease);
  for (const auto& [client, lease] : leases_) {
    shrink(*lease);
    tell(*lease);
  }
  return true;
}

// Who is away now asks when it is back.
void MemoryService::tell(const Lease& lease) {
  if (lease.peer == PeerId{}) return;
  const wire::Lent lent{.lease = lease.id, .memory_bytes = lease.bytes, .disk_bytes = lease.disk_bytes};
  const wire::RequestId nothing{number(lease.client.id), Epoch{static_cast<std::uint64_t>(lease.client.incarnation)},
                                wire::kUnasked};
  send(lease.peer, nothing, Kind::allocated, wire::body_of(lent), false);
}

bool MemoryService::serve_disk() {
  if (config_.disk == nullptr) return false;
  bool did = false;
  for (auto each = want_disk_slot_.begin(); each != want_disk_slot_.end();) {
    const PassageRef passage = *each;
    const auto granted = config_.disk->allocate(passage->at.page.bytes);
    if (granted && granted->grant == tiers::Grant::later) {
      ++each;
      continue;
    }
    did = true;
    each = want_disk_slot_.erase(each);
    if (!granted || granted->grant == tiers::Grant::full) {
      end_put(passage, granted ? Answer::full : Answer::failed);
      continue;
    }
    entry_of(*passage)->disk_slot = granted->slot;
    to_disk(passage, tiers::Direction::store, granted->slot);
  }
  std::vector<tiers::Completion> completions;
  if (!config_.disk->poll(completions)) return did;
  for (const tiers::Completion& completion : completions) {
    const auto ended = on_disk_.extract(completion.id);
    if (ended.empty()) continue;
    const PassageRef& passage = ended.mapped();
    const bool done = completion.outcome == tiers::Outcome::done;
    if (!done) disk_failed(completion.error);
    if (passage->in) {
      end_put(passage, done ? Answer::done : Answer::failed);
    } else if (done && passage->at.doubted == 0) {
      send_page(passage);  // the disk tier looked
    } else if (done) {
      arrived(passage);
    } else {
      end_fetch(passage, completion.outcome == tiers::Outcome::lost ? Answer::damaged : Answer::failed);
    }
  }
  return did || !completions.empty();
}

}  // namespace vmem::rdma
