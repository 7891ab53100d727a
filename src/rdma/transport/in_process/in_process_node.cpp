#include <fmt/format.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <utility>

#include "rdma/transport/in_process/in_process_fabric.hpp"
#include "rdma/transport/send_check.hpp"

namespace vmem::rdma {
namespace {

constexpr std::string_view kScheme = "node:";

std::string address_of(NodeId node) { return fmt::format("{}{}", kScheme, static_cast<std::uint64_t>(node)); }

Result<FabricPath> parse(const std::string& address) {
  std::uint64_t id = 0, path = 0;
  const char* const end = address.data() + address.size();
  if (address.starts_with(kScheme)) {
    auto [stopped, code] = std::from_chars(address.data() + kScheme.size(), end, id);
    if (code == std::errc{} && stopped != end && *stopped == '/') {
      const auto further = std::from_chars(stopped + 1, end, path);
      stopped = further.ptr;
      code = further.ec;
    }
    if (code == std::errc{} && stopped == end && id != 0) return FabricPath{NodeId{id}, path};
  }
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is no address: node:ID or node:ID/PATH is", address));
}

Error lost(std::string why) { return {VMEM_ERROR_LOST, 0, std::move(why)}; }

}  // namespace

FabricNode::FabricNode(std::shared_ptr<FabricState> fabric, NodeIdentity self, Receiver& receiver, const Clock& clock)
    : fabric_(std::move(fabric)),
      self_(self),
      receiver_(receiver),
      clock_(clock),
      address_(address_of(self.id)),
      process_(std::make_shared<const FileDescriptor>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  const std::lock_guard lock(fabric_->mutex);
  fabric_->nodes[self.id] = this;
}

FabricNode::~FabricNode() {
  const std::lock_guard lock(fabric_->mutex);
  while (!links_.empty()) drop(links_.begin()->first, Reason::closed, lost("the transport ends"));
  fabric_->nodes.erase(self_.id);
  end_process();
}

void FabricNode::end_process() noexcept { (void)::eventfd_write(process_->get(), 1); }

ProcessRef FabricNode::process_of(NodeId node) const {
  const auto found = fabric_->nodes.find(node);
  return fabric_->one_machine && found != fabric_->nodes.end() ? found->second->process_ : nullptr;
}

Result<std::unique_ptr<Slab>> FabricNode::register_slab(Bytes memory) {
  VMEM_ASSIGN(const SlabMap::Place place, slabs_.add(memory, nullptr));
  return std::make_unique<MappedSlab>(slabs_, place, memory);
}

Result<PeerId> FabricNode::connect(const std::string& address, std::uint64_t deadline_us) {
  VMEM_ASSIGN(const FabricPath path, parse(address));
  const NodeId node = path.node;
  const std::lock_guard lock(fabric_->mutex);
  const PeerId peer{++last_peer_};
  links_[peer] = {.node = {node, {}}, .path = path, .by_us = true, .deadline_us = deadline_us};
  deadlines_.add(deadline_us, peer);
  if (fabric_->nodes.contains(node) && !fabric_->refusing.contains(node)) {
    fabric_->deliver(self_.id, node, {.kind = Packet::Kind::connect, .from = self_, .from_peer = peer, .path = path});
  } else {
    arrive(fabric_->clock.now_us() + fabric_->latency_us, ++fabric_->packets,
           {.kind = Packet::Kind::refuse, .to_peer = peer});
  }
  return peer;
}

Status FabricNode::send(std::span<Send> sends) {
  for (Send& send : sends) send.id = {};
  for (Send& send : sends) VMEM_TRY(post(send));
  return {};
}

Status FabricNode::post(Send& send) {
  VMEM_TRY(check_send(send));
  for (const ConstBytes span : send.payload) VMEM_TRY(slabs_.find(span));
  const std::lock_guard lock(fabric_->mutex);
  const auto found = links_.find(send.peer);
  if (found != links_.end() && found->second.sends.size() == kMostOutstanding)
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} messages to one peer are under way, which is the most", kMostOutstanding));
  send.id = SendId{++last_send_};
  if (found == links_.end()) {
    events_.push({send.peer, SendFailed{send.id, Reason::lost, lost("the peer of this send is gone")}});
    return {};
  }
  Link& link = found->second;
  link.sends.emplace(
      send.id,
      Sending{{send.header.begin(), send.header.end()}, {send.payload.begin(), send.payload.end()}, send.deadline_us});
  deadlines_.add(send.deadline_us, send.peer);
  if (link.connected) transmit(link, send.peer, send.id);
  return {};
}

void FabricNode::transmit(Link& link, PeerId peer, SendId id) {
  const Sending& sending = link.sends.at(id);
  const std::uint64_t bytes = payload_bytes(sending.payload);
  dispatch(link, peer,
           {.kind = bytes == 0 ? Packet::Kind::message : Packet::Kind::announce,
            .bytes = sending.header,
            .payload_bytes = bytes,
            .send = id});
  if (bytes != 0) return;  // Kind::taken ends this send
  arrive(fabric_->clock.now_us(), ++fabric_->packets, {.kind = Packet::Kind::taken, .to_peer = peer, .send = id});
}

void FabricNode::dispatch(const Link& link, PeerId peer, Packet packet) {
  packet.from = self_;
  packet.from_peer = peer;
  packet.to_peer = link.remote;
  packet.path = link.path;
  fabric_->deliver(self_.id, link.node.id, std::move(packet));
}

void FabricNode::close(PeerId peer) {
  const std::lock_guard lock(fabric_->mutex);
  drop(peer, Reason::closed, lost("the connection was closed"));
}

void FabricNode::drop(PeerId peer, Reason reason, Error error) {
  const auto node = links_.extract(peer);
  if (node.empty()) return;
  const Link& link = node.mapped();
  if (!link.connected) deadlines_.remove(link.deadline_us, peer);
  for (const auto& [id, sending] : link.sends) {
    deadlines_.remove(sending.deadline_us, peer);
    events_.push({peer, SendFailed{id, reason, error}});
  }
  for (const auto& [id, receiving] : link.receives) {
    deadlines_.remove(receiving.claim.deadline_us, peer);
    events_.push({peer, ReceiveFailed{receiving.claim.token, error}});
  }
  if (reason != Reason::left && reason != Reason::lost)
    dispatch(link, peer, {.kind = Packet::Kind::bye, .reason = reason});
  events_.push({peer, Gone{reason, std::move(error)}});
}

void FabricNode::arrive(std::uint64_t due_us, std::uint64_t order, Packet packet) {
  inbox_.emplace(std::pair{due_us, order}, std::move(packet));
  fabric_->changed.notify_all();
}

void FabricNode::peer_died(NodeId node) {
  for (const auto& [peer, link] : links_) {
    if (link.node.id == node)
      arrive(fabric_->clock.now_us() + fabric_->latency_us, ++fabric_->packets,
             {.kind = Packet::Kind::dead, .to_peer = peer});
  }
}

bool FabricNode::stopped() const { return fabric_->silent.contains(self_.id) || fabric_->dead.contains(self_.id); }

bool FabricNode::progress() {
  const std::lock_guard lock(fabric_->mutex);
  woken_ = false;
  if (stopped()) return false;
  bool did = false;
  while (!inbox_.empty() && inbox_.begin()->first.first <= fabric_->clock.now_us()) {
    handle(std::move(inbox_.extract(inbox_.begin()).mapped()));
    did = true;
  }
  return expire() || did;
}

bool FabricNode::expire() {
  const std::uint64_t now = clock_.now_us();
  std::set<PeerId> late;
  deadlines_.for_expired(now, [&](PeerId peer) { late.insert(peer); });
  for (const PeerId peer : late)
    drop(peer, Reason::timeout,
         {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("{} did not answer before the deadline", address_of(links_.at(peer).node.id))});
  return !late.empty();
}

void FabricNode::idle(std::uint64_t most_us) {
  std::unique_lock lock(fabric_->mutex);
  fabric_->changed.wait_for(lock, std::chrono::microseconds(most_us), [&] {
    return woken_ || (!stopped() && !inbox_.empty() && inbox_.begin()->first.first <= fabric_->clock.now_us());
  });
}

void FabricNode::wake() noexcept {
  const std::lock_guard lock(fabric_->mutex);
  woken_ = true;
  fabric_->changed.notify_all();
}

void FabricNode::handle(Packet packet) {
  if (packet.kind == Packet::Kind::connect) return on_connect(packet);
  const auto found = links_.find(packet.to_peer);
  if (found == links_.end()) {
    // The link was closed before it was accepted: tell the accepting node.
    if (packet.kind == Packet::Kind::accept)
      fabric_->deliver(
          self_.id, packet.from.id,
          {.kind = Packet::Kind::bye, .to_peer = packet.from_peer, .reason = Reason::closed, .path = packet.path});
    return;
  }
  Link& link = found->second;
  const bool of_another = packet.from.id != NodeId{} && (packet.from != link.node || packet.from_peer != link.remote);
  if (link.connected && of_another) return;  // sent to an earlier process with this node's id
  const std::string other = address_of(link.node.id);
  switch (packet.kind) {
    case Packet::Kind::accept:
      return on_accept(link, packet);
    case Packet::Kind::message:
      return events_.push({packet.to_peer, Message{std::move(packet.bytes), {}, 0}});
    case Packet::Kind::announce:
      return on_announce(link, std::move(packet));
    case Packet::Kind::clear:
      return on_clear(link, packet);
    case Packet::Kind::data:
      return on_data(link, std::move(packet));
    case Packet::Kind::taken:
      return on_taken(link, packet);
    case Packet::Kind::bye:
      return drop(packet.to_peer, Reason::left, lost(fmt::format("{} left: {}", other, reason_name(packet.reason))));
    case Packet::Kind::refuse:
      return drop(packet.to_peer, Reason::lost,
                  {VMEM_ERROR_LOST, ECONNREFUSED, fmt::format("nobody listens at {}", other)});
    case Packet::Kind::dead:
      return drop(packet.to_peer, Reason::lost, lost(fmt::format("{} died", other)));
    case Packet::Kind::connect:
      break;
  }
}

void FabricNode::tell_connected(PeerId peer, const Link& link) {
  Connected connected{link.node, link.by_us, "in-process", {}, process_of(link.node.id)};
  connected.takes_gpu_memory = sends_gpu_memory() && !fabric_->without_gpu_memory.contains(link.node.id);
  events_.push({peer, std::move(connected)});
}

void FabricNode::on_connect(const Packet& packet) {
  const PeerId peer{++last_peer_};
  Link& link = links_[peer] = {.node = packet.from, .path = packet.path, .remote = packet.from_peer, .connected = true};
  tell_connected(peer, link);
  dispatch(link, peer, {.kind = Packet::Kind::accept});
}

void FabricNode::on_accept(Link& link, const Packet& packet) {
  link.node = packet.from;
  link.remote = packet.from_peer;
  link.connected = true;
  deadlines_.remove(link.deadline_us, packet.to_peer);
  tell_connected(packet.to_peer, link);
  std::vector<SendId> held;
  for (const auto& [id, sending] : link.sends) held.push_back(id);
  for (const SendId id : held) transmit(link, packet.to_peer, id);
}

void FabricNode::on_announce(Link& link, Packet packet) {
  const PeerId peer = packet.to_peer;
  const auto claim = receiver_.claim(peer, packet.bytes, packet.payload_bytes);
  const bool fits = claim && claim->destination.size() == packet.payload_bytes;
  if (claim && !fits)
    events_.push({peer, ReceiveFailed{claim->token, {VMEM_ERROR_INTERNAL, 0, "claimed with another size"}}});
  if (!fits) return dispatch(link, peer, {.kind = Packet::Kind::taken, .send = packet.send});
  link.receives.emplace(packet.send, Receiving{std::move(packet.bytes), *claim});
  deadlines_.add(claim->deadline_us, peer);
  dispatch(link, peer, {.kind = Packet::Kind::clear, .send = packet.send});
}

void FabricNode::on_clear(Link& link, const Packet& packet) {
  const auto sending = link.sends.find(packet.send);
  if (sending == link.sends.end()) return;
  Packet data{.kind = Packet::Kind::data, .send = packet.send};
  for (const ConstBytes span : sending->second.payload) data.bytes.insert(data.bytes.end(), span.begin(), span.end());
  dispatch(link, packet.to_peer, std::move(data));
}

void FabricNode::on_data(Link& link, Packet packet) {
  auto found = link.receives.extract(packet.send);
  if (found.empty()) return;
  Receiving& receiving = found.mapped();
  deadlines_.remove(receiving.claim.deadline_us, packet.to_peer);
  std::memcpy(receiving.claim.destination.data(), packet.bytes.data(), packet.bytes.size());
  events_.push(
      {packet.to_peer, Message{std::move(receiving.header), receiving.claim.destination, receiving.claim.token}});
  dispatch(link, packet.to_peer, {.kind = Packet::Kind::taken, .send = packet.send});
}

void FabricNode::on_taken(Link& link, const Packet& packet) {
  const auto sending = link.sends.extract(packet.send);
  if (sending.empty()) return;
  deadlines_.remove(sending.mapped().deadline_us, packet.to_peer);
  events_.push({packet.to_peer, Sent{packet.send}});
}

}  // namespace vmem::rdma
