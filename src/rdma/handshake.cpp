#include "rdma/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace vmem::rdma {
namespace {

template <class T>
ConstBytes bytes_of(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

void append(std::vector<std::byte>& out, ConstBytes bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

const char* proof_label(Handshake::Role role) {
  return role == Handshake::Role::initiator ? "vmem proof of the initiator" : "vmem proof of the responder";
}
const char* parameters_label(Handshake::Role role) {
  return role == Handshake::Role::initiator ? "vmem parameters of the initiator" : "vmem parameters of the responder";
}
const char* messages_label(Handshake::Role role) {
  return role == Handshake::Role::initiator ? "vmem messages of the initiator" : "vmem messages of the responder";
}

std::unexpected<Error> refuse(std::string why) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(why)); }

Status same(std::string_view what, std::uint64_t theirs, std::uint64_t ours, std::string_view option) {
  if (theirs == ours) return {};
  return refuse(fmt::format("the peer's {} is {:#x}, this node's {:#x}: {} has to be equal on all nodes", what, theirs,
                            ours, option));
}

}  // namespace

Handshake::Handshake(Role role, const Crypto& crypto, const Secret* secret, Introduction self, OpenEntrance open)
    : role_(role),
      crypto_(crypto),
      key_(secret == nullptr ? Key{} : secret->key()),
      self_(std::move(self)),
      open_(std::move(open)) {
  our_hello_.role = static_cast<std::uint16_t>(role);
  our_hello_.has_secret = secret == nullptr ? 0 : 1;
  our_hello_.node = static_cast<std::uint64_t>(self_.node.id);
  our_hello_.incarnation = static_cast<std::uint64_t>(self_.node.incarnation);
  our_hello_.nonce = crypto.nonce();
  our_parameters_ = {.base = self_.parameters.base,
                     .space_bytes = self_.parameters.space_bytes,
                     .page_bytes = self_.parameters.page_bytes,
                     .link = crypto.random()};
}

std::vector<std::byte> Handshake::start() const {
  std::vector<std::byte> out;
  append(out, bytes_of(our_hello_));
  return out;
}

Status Handshake::receive(ConstBytes bytes, std::vector<std::byte>& out) {
  if (bytes.size() > wanted()) return fail(VMEM_ERROR_INVALID_VALUE, "more bytes than the handshake has");
  append(received_, bytes);
  if (received_.size() < needed_) return {};
  switch (stage_) {
    case Stage::hello:
      return on_hello(out);
    case Stage::proof:
      return on_proof(out);
    case Stage::parameters:
      return on_parameters();
    case Stage::endpoint:
      return on_endpoint(out);
    case Stage::done:
      break;
  }
  return {};
}

void Handshake::expect(Stage stage, std::size_t bytes) {
  stage_ = stage;
  needed_ = bytes;
  received_.clear();
}

std::array<ConstBytes, 2> Handshake::hellos() const {
  const ConstBytes ours = bytes_of(our_hello_), theirs = bytes_of(their_hello_);
  if (role_ == Role::initiator) return {ours, theirs};
  return {theirs, ours};
}

Status Handshake::on_hello(std::vector<std::byte>& out) {
  std::memcpy(&their_hello_, received_.data(), sizeof(their_hello_));
  if (their_hello_.magic != our_hello_.magic) return fail(VMEM_ERROR_INVALID_VALUE, "what connected is no vmem node");
  // Said before the other's is checked, so that both can name both values.
  if (role_ == Role::responder) append(out, bytes_of(our_hello_));
  VMEM_TRY(check_hello());
  session_ = crypto_.derive(key_, "vmem session", hellos());
  if (role_ == Role::responder) append_proof(out);
  expect(Stage::proof, sizeof(Tag));
  return {};
}

Status Handshake::check_hello() const {
  if (their_hello_.version != our_hello_.version)
    return refuse(
        fmt::format("the peer speaks version {} of the handshake, this node version {}: run the same release on both",
                    their_hello_.version, our_hello_.version));
  if (their_hello_.role != static_cast<std::uint16_t>(other_role()))
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("the peer speaks in role {}", their_hello_.role));
  if (their_hello_.has_secret != our_hello_.has_secret)
    return refuse(their_hello_.has_secret != 0
                      ? "the peer has a secret, this node none: give both the same secret file"
                      : "the peer has no secret, this node one: give both the same secret file");
  if (their_hello_.node == 0) return refuse("the peer's node id is 0: ids begin with 1");
  if (their_hello_.node == our_hello_.node)
    return refuse(fmt::format("the peer's node id is {}, and so is this node's: each node needs an id of its own",
                              their_hello_.node));
  return {};
}

void Handshake::append_proof(std::vector<std::byte>& out) const {
  append(out, bytes_of(crypto_.authenticate(key_, proof_label(role_), hellos())));
}

Status Handshake::on_proof(std::vector<std::byte>& out) {
  Tag proof;
  std::memcpy(proof.data(), received_.data(), proof.size());
  if (!crypto_.verify(proof, key_, proof_label(other_role()), hellos()))
    return refuse(fmt::format(
        "the peer that calls itself node {} does not know this node's secret: give both the same secret file",
        their_hello_.node));
  if (role_ == Role::initiator) {
    append_proof(out);
    VMEM_TRY(append_parameters(out));
  }
  expect(Stage::parameters, sizeof(wire::Parameters));
  return {};
}

Status Handshake::append_parameters(std::vector<std::byte>& out) {
  if (open_) {
    VMEM_ASSIGN(Entrance entrance, open_());
    self_.endpoint = std::move(entrance.endpoint);
    acquaintance_.entrance = std::move(entrance.owner);
  }
  our_parameters_.endpoint_bytes = static_cast<std::uint32_t>(self_.endpoint.size());
  const ConstBytes pieces[] = {bytes_of(our_parameters_), self_.endpoint};
  append(out, pieces[0]);
  append(out, pieces[1]);
  append(out, bytes_of(crypto_.authenticate(session_, parameters_label(role_), pieces)));
  return {};
}

Status Handshake::on_parameters() {
  std::memcpy(&their_parameters_, received_.data(), sizeof(their_parameters_));
  if (their_parameters_.endpoint_bytes > wire::kMostEndpointBytes)
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("the peer's endpoint address has {} bytes, the most is {}",
                                                      their_parameters_.endpoint_bytes, wire::kMostEndpointBytes));
  expect(Stage::endpoint, their_parameters_.endpoint_bytes + sizeof(Tag));
  return {};
}

Status Handshake::on_endpoint(std::vector<std::byte>& out) {
  const ConstBytes endpoint = ConstBytes(received_).first(their_parameters_.endpoint_bytes);
  Tag tag;
  std::memcpy(tag.data(), received_.data() + endpoint.size(), tag.size());
  const ConstBytes pieces[] = {bytes_of(their_parameters_), endpoint};
  if (!crypto_.verify(tag, session_, parameters_label(other_role()), pieces))
    return fail(VMEM_ERROR_INVALID_VALUE, "the peer's parameters were changed on their way");
  if (role_ == Role::responder) VMEM_TRY(append_parameters(out));
  VMEM_TRY(check_parameters());
  acquaintance_.peer.node = {NodeId{their_hello_.node}, Incarnation{their_hello_.incarnation}};
  acquaintance_.peer.parameters = {their_parameters_.base, their_parameters_.space_bytes, their_parameters_.page_bytes};
  acquaintance_.peer.endpoint.assign(endpoint.begin(), endpoint.end());
  acquaintance_.our_link = our_parameters_.link;
  acquaintance_.their_link = their_parameters_.link;
  const auto short_key = [&](Role role) {
    const Key key = crypto_.derive(session_, messages_label(role), {});
    ShortKey shortened;
    std::copy_n(key.bytes.begin(), shortened.bytes.size(), shortened.bytes.begin());
    return shortened;
  };
  acquaintance_.send_key = short_key(role_);
  acquaintance_.receive_key = short_key(other_role());
  expect(Stage::done, 0);
  return {};
}

Status Handshake::check_parameters() const {
  VMEM_TRY(same("address space begins at", their_parameters_.base, our_parameters_.base, "--base"));
  VMEM_TRY(same("address space size", their_parameters_.space_bytes, our_parameters_.space_bytes, "--space"));
  VMEM_TRY(same("page size", their_parameters_.page_bytes, our_parameters_.page_bytes, "--page"));
  return {};
}

}  // namespace vmem::rdma
