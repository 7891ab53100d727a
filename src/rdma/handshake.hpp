// How two nodes come to trust each other, before either tells the other anything that leads to its memory. Pure: bytes in, bytes out.
//
//   initiator                             responder
//   Hello                           →
//                                   ←     Hello, proof
//   proof, Parameters, tag          →
//                                   ←     Parameters, tag
//
// A proof is an HMAC under the shared secret over the role of who proves and both Hellos, which carry a fresh nonce each, ids and
// protocol version: it cannot be replayed, reflected or moved to another pair. Parameters are authenticated under a key derived
// from all of this, and checked by both; each side says its own before it refuses the other's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rdma/trust/keyring.hpp"

namespace vmem::rdma {

inline constexpr std::uint16_t kHandshakeVersion = 2;

// What has to be equal on all nodes: a pointer means the same everywhere.
struct ClusterParameters {
  std::uint64_t base = 0;
  std::uint64_t space_bytes = 0;
  std::uint64_t page_bytes = 0;
};

struct Introduction {
  NodeIdentity node;
  ClusterParameters parameters;
  std::vector<std::byte> endpoint;  // where the transport is reached; opaque
};

// Where one link is reached, for as long as its owner lives.
struct Entrance {
  std::vector<std::byte> endpoint;
  std::shared_ptr<void> owner;
};
using OpenEntrance = std::function<Result<Entrance>()>;

// What both know afterwards.
struct Acquaintance {
  Introduction peer;
  std::shared_ptr<void> entrance;  // the owner of what was opened here
  std::uint64_t our_link = 0;      // what the peer's messages carry
  std::uint64_t their_link = 0;    // what ours carry
  ShortKey send_key, receive_key;  // for the tags of message headers
};

namespace wire {

struct Hello {
  std::array<char, 8> magic{'v', 'm', 'e', 'm', 'l', 'i', 'n', 'k'};
  std::uint16_t version = kHandshakeVersion;
  std::uint16_t role = 0;
  std::uint32_t has_secret = 0;
  std::uint64_t node = 0;
  std::uint64_t incarnation = 0;
  Nonce nonce{};
};
struct Parameters {
  std::uint64_t base = 0;
  std::uint64_t space_bytes = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t link = 0;
  std::uint32_t endpoint_bytes = 0;  // that follow
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 64 && sizeof(Parameters) == 40);
inline constexpr std::size_t kMostEndpointBytes = 65536;

}  // namespace wire

class Handshake {
 public:
  enum class Role : std::uint16_t { initiator = 1, responder = 2 };

  // `secret`: null for none; it and crypto outlive it. `open` is called when the other has proved itself; without it, the endpoint is the introduction's.
  Handshake(Role role, const Crypto& crypto, const Secret* secret, Introduction self, OpenEntrance open = {});

  // The initiator's first bytes.
  std::vector<std::byte> start() const;
  // How many bytes it can take now; 0 when it is over.
  std::size_t wanted() const noexcept { return stage_ == Stage::done ? 0 : needed_ - received_.size(); }
  // At most wanted() bytes. Appends what is to be sent, also when it fails. Errors: what was refused, with both values.
  Status receive(ConstBytes bytes, std::vector<std::byte>& out);
  bool done() const noexcept { return stage_ == Stage::done; }
  // The other has proved itself.
  bool trusted() const noexcept { return stage_ > Stage::proof; }
  // REQUIRES: done().
  Acquaintance take() { return std::move(acquaintance_); }

 private:
  enum class Stage : std::uint8_t { hello, proof, parameters, endpoint, done };

  Status on_hello(std::vector<std::byte>& out);
  Status on_proof(std::vector<std::byte>& out);
  Status on_parameters();
  Status on_endpoint(std::vector<std::byte>& out);
  Status check_hello() const;
  Status check_parameters() const;
  void append_proof(std::vector<std::byte>& out) const;
  Status append_parameters(std::vector<std::byte>& out);
  void expect(Stage stage, std::size_t bytes);
  std::array<ConstBytes, 2> hellos() const;
  Role other_role() const { return role_ == Role::initiator ? Role::responder : Role::initiator; }

  const Role role_;
  const Crypto& crypto_;
  const Key key_;  // zeros without a secret
  Introduction self_;
  const OpenEntrance open_;
  wire::Hello our_hello_, their_hello_;
  wire::Parameters our_parameters_, their_parameters_;
  Key session_;
  Stage stage_ = Stage::hello;
  std::size_t needed_ = sizeof(wire::Hello);
  std::vector<std::byte> received_;  // of this stage
  Acquaintance acquaintance_;
};

}  // namespace vmem::rdma
