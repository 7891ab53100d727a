// Two nodes that share a secret, and an attacker between them who changes, drops and adds bytes:
// the bytes that arrive are those that were sent, or none.
#include <array>
#include <deque>
#include <vector>

#include "fuzz/tls_node.hpp"

namespace vmem::rdma {
namespace {

using fuzz::equal;
using fuzz::Input;
using fuzz::require;
using fuzz::SocketPair;

constexpr std::size_t kDataBytes = 3000;
constexpr int kTurns = 16;

struct Change {
  enum class Kind : std::uint8_t { flip, drop, add, cut } kind = Kind::flip;
  std::size_t at = 0;  // offset in this direction's bytes
  std::byte value{};
};

// One direction of the network.
class Wire {
 public:
  void add(Change change) { changes_.push_back(change); }
  bool changed() const { return changed_; }

  void carry(int from, int to) {
    std::array<std::byte, 8192> part;
    const ssize_t got = cut_ ? 0 : ::recv(from, part.data(), part.size(), 0);
    if (got <= 0) return;
    std::vector<std::byte> out;
    for (const std::byte byte : std::span(part).first(std::size_t(got))) pass(byte, out);
    (void)fuzz::send_all(to, out);
    if (cut_) (void)::shutdown(to, SHUT_WR);
  }

 private:
  void pass(std::byte byte, std::vector<std::byte>& out) {
    bool goes = !cut_;
    for (const Change& change : changes_) {
      if (change.at != carried_) continue;
      const bool was = std::exchange(changed_, true);
      if (change.kind == Change::Kind::flip) {
        byte ^= change.value;
        changed_ = was || change.value != std::byte{};
      }
      if (change.kind == Change::Kind::drop) goes = false;
      if (change.kind == Change::Kind::add) out.push_back(change.value);
      if (change.kind == Change::Kind::cut) {
        cut_ = true;
        goes = false;
      }
    }
    ++carried_;
    if (goes) out.push_back(byte);
  }
  std::vector<Change> changes_;
  std::size_t carried_ = 0;
  bool changed_ = false, cut_ = false;
};

class Node {
 public:
  Node(const std::shared_ptr<TlsContext>& context, TlsRole role, std::byte fill)
      : sent_(kDataBytes, fill), session_(*TlsSession::create(context, role, sockets_.ours.get(), "")) {}

  int network() const { return sockets_.theirs.get(); }
  bool is_trusting() const { return trusts_; }
  bool is_over() const { return failed_ || received_.size() == kDataBytes; }
  ConstBytes sent() const { return sent_; }
  ConstBytes received() const { return received_; }

  void turn() {
    if (failed_) return;
    if (!trusts_) {
      const auto done = session_->handshake();
      failed_ = !done;
      trusts_ = done && *done;
      if (trusts_) require(session_->peer().identity == "cluster", "a peer is who it proved to be");
    }
    if (trusts_ && !failed_) talk();
  }

 private:
  void talk() {
    while (written_ < sent_.size() && !failed_) {
      const auto taken =
          session_->write(ConstBytes(sent_).subspan(written_, std::min<std::size_t>(1000, sent_.size() - written_)));
      failed_ = !taken;
      written_ += taken ? *taken : 0;
    }
    failed_ |= !session_->flush();
    std::array<std::byte, 4096> part;
    for (std::size_t got = 1; got != 0 && !failed_;) {
      const auto read = session_->read(part);
      failed_ = !read;
      got = read ? *read : 0;
      received_.insert(received_.end(), part.begin(), part.begin() + std::ptrdiff_t(got));
    }
  }
  SocketPair sockets_;
  std::vector<std::byte> sent_, received_;
  std::size_t written_ = 0;
  std::unique_ptr<TlsSession> session_;
  bool trusts_ = false, failed_ = false;
};

void run(Input& input) {
  static const auto context = fuzz::tls_context(1);  // a new key for each record
  Node client(context, TlsRole::client, std::byte{0x11}), server(context, TlsRole::server, std::byte{0x22});
  Wire to_server, to_client;
  for (int i = 0; i < 8 && !input.empty(); ++i) {
    Wire& wire = input.flag() ? to_server : to_client;
    const auto kind = Change::Kind(input.below(4));
    const std::size_t at = input.take<std::uint16_t>() % 4096;
    wire.add({kind, at, input.take<std::byte>()});
  }
  for (int i = 0; i < kTurns; ++i) {
    client.turn();
    to_server.carry(client.network(), server.network());
    server.turn();
    to_client.carry(server.network(), client.network());
    if (client.is_over() && server.is_over()) break;
  }
  const auto check = [](const Node& from, const Node& to) {
    const std::size_t arrived = to.received().size();
    require(arrived <= kDataBytes && equal(to.received(), from.sent().first(arrived)), "what arrives is what was sent");
  };
  check(client, server);
  check(server, client);
  if (to_server.changed() || to_client.changed()) return;
  require(client.is_trusting() && server.is_trusting(), "nodes with the same secret trust each other");
  require(client.received().size() == kDataBytes && server.received().size() == kDataBytes, "all arrives");
}

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  vmem::rdma::run(input);
  return 0;
}
