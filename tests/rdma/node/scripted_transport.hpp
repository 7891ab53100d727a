// A transport whose events the test writes, and which records what is asked of it. And a Node over
// it, which the test steps.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "rdma/lending/protocol.hpp"
#include "rdma/node/node.hpp"

namespace vmem::rdma {

class ScriptedTransport : public Transport {
 public:
  struct Leaving {
    PeerId peer{};
    SendId id{};
    std::vector<std::byte> header;
    bool payload = false;
  };
  std::vector<Event> events;
  std::vector<PeerId> closed;
  std::vector<Leaving> sent;
  std::vector<std::pair<std::string, PeerId>> connects;  // address, and the peer that it became
  Status next_send, next_connect;                        // errors that send() and connect() give
  std::function<void()> on_progress = [] {};

  void connected(PeerId peer, NodeId node, ProcessRef process = nullptr, std::string identity = "") {
    push(peer,
         Connected{.node = {node, Incarnation{1}}, .identity = std::move(identity), .process = std::move(process)});
  }
  // The last connect() succeeds.
  PeerId reached(NodeId node) {
    const PeerId peer = connects.back().second;
    push(peer, Connected{.node = {node, Incarnation{1}}, .by_us = true});
    return peer;
  }
  void says(PeerId peer, NodeId node, wire::Kind kind, ConstBytes body) {
    says(peer, {static_cast<std::uint64_t>(node), Epoch{1}, ++sequence_}, kind, body);
  }
  template <class Body>
    requires std::is_trivially_copyable_v<Body>
  void says(PeerId peer, NodeId node, wire::Kind kind, const Body& body) {
    says(peer, node, kind, wire::body_of(body));
  }
  void says(PeerId peer, wire::RequestId request, wire::Kind kind, ConstBytes body) {
    push(peer, Message{.header = *wire::write({.kind = kind, .request = request}, body)});
  }
  void landed(PeerId peer, std::uint64_t token) { push(peer, Message{.token = token}); }
  void gone(PeerId peer, Reason reason = Reason::closed, std::string why = "") {
    push(peer, Gone{.reason = reason, .error = {VMEM_ERROR_DRIVER, 0, std::move(why)}});
  }
  template <class What>
  void push(PeerId peer, What what) {
    Event& event = events.emplace_back();
    event.peer = peer;
    event.what = std::move(what);
  }
  wire::Header header(std::size_t i) const { return wire::parse(sent.at(i).header)->header; }

  const std::string& address() const noexcept override { return address_; }
  Result<std::unique_ptr<Slab>> register_slab(Bytes) override { return fail(VMEM_ERROR_UNSUPPORTED, "no memory here"); }
  Result<PeerId> connect(const std::string& address, std::uint64_t) override {
    VMEM_TRY(next_connect);
    connects.emplace_back(address, PeerId{1000 + connects.size()});
    return connects.back().second;
  }
  Status send(std::span<Send> sends) override {
    VMEM_TRY(next_send);
    for (Send& each : sends) {
      each.id = SendId{++last_send_};
      sent.push_back({each.peer, each.id, {each.header.begin(), each.header.end()}, !each.payload.empty()});
    }
    return {};
  }
  void close(PeerId peer) override { closed.push_back(peer); }
  void poll(std::vector<Event>& to) override { to.swap(events); }  // the node's vector is empty
  bool wait(std::uint64_t) override { return !events.empty(); }
  bool progress() override {
    on_progress();
    return false;
  }
  void idle(std::uint64_t) override {}
  void wake() noexcept override {}

 private:
  const std::string address_ = "nowhere";
  std::uint64_t sequence_ = 0, last_send_ = 0;
};

// Registers any memory.
class RegisteringTransport final : public ScriptedTransport {
 public:
  Result<std::unique_ptr<Slab>> register_slab(Bytes) override { return std::make_unique<Registered>(); }

 private:
  struct Registered final : Slab {
    Bytes memory() const noexcept override { return {}; }
  };
};

inline constexpr NodeIdentity kScriptedSelf{NodeId{1}, Incarnation{1}};

template <class Scripted>
std::unique_ptr<Node> scripted_node(const Clock& clock, Scripted*& transport) {
  NodeSetup setup{.self = kScriptedSelf, .make_transport = {}, .clock = &clock, .times = {}, .own_thread = false};
  setup.make_transport = [&](Receiver&) -> Result<std::unique_ptr<Transport>> {
    auto scripted = std::make_unique<Scripted>();
    transport = scripted.get();
    return scripted;
  };
  return *Node::create(setup);
}

}  // namespace vmem::rdma
