// The TLS handshake of a server or client with a peer that has no secret and sends anything never
// succeeds.
#include "fuzz/tls_node.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem;
  using fuzz::require;
  static const auto context = fuzz::tls_context(rdma::TlsContext::kRecordsPerKey);
  fuzz::Input input(data, size);
  const auto role = input.flag() ? rdma::TlsRole::client : rdma::TlsRole::server;
  const bool hangs_up = input.flag();
  const std::size_t piece = std::size_t{1} << input.below(16);
  fuzz::SocketPair sockets;
  const auto session = *rdma::TlsSession::create(context, role, sockets.ours.get(), "");
  Result<bool> done = session->handshake();
  for (fuzz::ConstBytes rest = input.rest(); !rest.empty() && done;) {
    const fuzz::ConstBytes part = rest.first(std::min(piece, rest.size()));
    rest = rest.subspan(part.size());
    if (!fuzz::send_all(sockets.theirs.get(), part)) break;
    if (rest.empty() && hangs_up) (void)::shutdown(sockets.theirs.get(), SHUT_WR);
    done = session->handshake();
    require(!done || !*done, "a stranger proves nothing");
  }
  if (done) return 0;
  require(!done.error().message.empty(), "a refusal says why");
  const auto again = session->handshake();
  require(!again || !*again, "a stranger proves nothing after a failure");
  return 0;
}
