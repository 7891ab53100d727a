// The introduction of a UCX link, from an authenticated peer.
#include "fuzz/socket_pair.hpp"
#include "rdma/transport/ucx/ucx_exchange.hpp"

namespace vmem::rdma {
namespace {

using fuzz::Input;
using fuzz::require;
using fuzz::SocketPair;

Result<UcxIntroduction> hear(ConstBytes bytes, std::size_t piece) {
  SocketPair sockets;
  ByteStream stream(std::move(sockets.ours));
  UcxExchange exchange({.link = 1, .key = {}, .addresses = {UcxAddress(8)}});
  Result<bool> done = exchange.advance(stream);
  while (done && !*done && !bytes.empty()) {
    const ConstBytes part = bytes.first(std::min(piece, bytes.size()));
    if (!fuzz::send_all(sockets.theirs.get(), part)) break;
    bytes = bytes.subspan(part.size());
    done = exchange.advance(stream);
  }
  if (!done) return std::unexpected(done.error());
  if (!*done) return fail(VMEM_ERROR_LOST, "it ended before its end");
  return exchange.take();
}

// The bytes that a node writes for this introduction.
std::vector<std::byte> say(const UcxIntroduction& introduction) {
  SocketPair sockets;
  ByteStream stream(std::move(sockets.ours));
  UcxExchange exchange(introduction);
  require(exchange.advance(stream).has_value(), "an introduction is written");
  std::vector<std::byte> said(2 * UcxExchange::kMostAddressBytes);
  const ssize_t got = ::recv(sockets.theirs.get(), said.data(), said.size(), 0);
  require(got > 0, "an introduction is read");
  said.resize(std::size_t(got));
  return said;
}

}  // namespace
}  // namespace vmem::rdma

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem::rdma;
  vmem::fuzz::Input input(data, size);
  const std::size_t piece = std::size_t{1} << input.below(16);
  const auto heard = hear(input.rest(), piece);
  if (!heard) {
    require(!heard.error().message.empty(), "a refusal says why");
    return 0;
  }
  require(!heard->addresses.empty(), "an introduction names an address");
  const auto again = hear(say(*heard), 65536);
  require(again && again->link == heard->link && again->key.bytes == heard->key.bytes &&
              again->addresses == heard->addresses && again->knows_cuda == heard->knows_cuda,
          "what was heard can be said again");
  return 0;
}
