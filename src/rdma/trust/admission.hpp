// Sets up connections: the listener, then the TLS handshake or the check of the peer's user, then
// one Hello in each direction. Before the peer is proved, only TLS records are read. A Hello is 64
// bytes of fixed layout. Connections that are late, too many or too costly (CPU time) are closed.
//
// Thread: the one that runs the io_context.
#pragma once

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "rdma/transport/protocol_version.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/trust/byte_stream.hpp"
#include "rdma/trust/handshake_budget.hpp"
#include "rdma/trust/local_socket.hpp"

namespace vmem::rdma {

struct Hello {
  enum class Role : std::uint16_t { initiator = 1, responder = 2 };
  std::array<char, 8> magic{'v', 'm', 'e', 'm', 'n', 'o', 'd', 'e'};
  std::uint16_t version = kProtocolVersion;
  Role role = Role::initiator;
  std::uint16_t channels = 1;  // payload channels that this node supports
  std::uint16_t index = 0;     // of this connection within its link; 0: the first
  std::uint64_t node = 0, incarnation = 0;
  std::uint64_t base = 0, space_bytes = 0, page_bytes = 0;
  std::uint64_t link = 0;  // 0 in the first connection's request: the responder chooses
};
static_assert(sizeof(Hello) == 64);

class Admission {
 public:
  struct Config {
    NodeIdentity self;
    ClusterParameters parameters;
    std::string listen;               // "": no listener
    std::shared_ptr<TlsContext> tls;  // null: Unix sockets only
    const Crypto* crypto = nullptr;
    const Clock* clock = nullptr;
    std::uint16_t channels = 1;
    std::uint16_t version = kProtocolVersion;
    std::uint64_t handshake_us = 5'000'000;  // for incoming connections
    std::size_t most_pending = 64;           // incoming
    std::size_t most_pending_per_host = 16;
    HandshakeLimits limits;  // for unproved incoming connections
  };
  struct SetUp {            // a connection, or why there is none
    std::uint64_t key = 0;  // as passed to connect(); 0: incoming
    // Of the peer; incoming over a Unix socket: the listener's, for messages.
    std::string address;
    ByteStream stream;  // proved, unless `failed`
    Hello ours, theirs;
    std::uint16_t version() const { return std::min(ours.version, theirs.version); }
    Reason reason = Reason::refused;  // only if `failed`
    std::optional<Error> failed;
  };
  using OnOutcome = std::function<void(SetUp)>;

  // Errors: INVALID_OPTION, with the reason, if the address cannot or may not be used; INTERNAL.
  static Result<std::unique_ptr<Admission>> create(boost::asio::io_context& context, Config config,
                                                   OnOutcome on_outcome);
  ~Admission();
  const std::string& address() const noexcept { return address_; }

  // Without TLS, refuses all but loopback addresses. `what` begins the message.
  // Errors: INVALID_OPTION.
  Status may_use(const SocketAddress& address, const char* what) const;
  // Reports one outcome with this key, which is not 0, unless cancel() or close() comes first.
  // `link` 0: the first connection of a link.
  void connect(std::uint64_t key, const SocketAddress& address, std::uint64_t link, std::uint16_t index,
               std::uint64_t deadline_us);
  void cancel(std::uint64_t key);
  // Ends connections past their deadline; true if there were any.
  bool expire();
  // Stops listening, and drops pending connections without an outcome.
  void close();

 private:
  struct Pending;
  class CpuMeter;
  using PendingRef = std::shared_ptr<Pending>;

  Admission(boost::asio::io_context& context, Config config, OnOutcome on_outcome);
  Status listen();
  void wait_for_connections();
  void accept();
  void admit(FileDescriptor socket, CpuMeter cost);
  bool is_unproved_incoming(const Pending& pending) const;
  void turn_away(const std::string& address, FileDescriptor socket);
  void make_room(Pending& for_this);
  Result<ByteStream> secure(FileDescriptor socket, TlsRole role, const std::string& host) const;
  void advance(const PendingRef& pending);  // REQUIRES: `pending`'s meter runs
  Result<bool> try_stages(Pending& pending);
  Result<bool> send_hello(Pending& pending);
  Result<bool> read_hello(Pending& pending);
  Status check(const Hello& theirs, Hello::Role role) const;
  void wait_ready(const PendingRef& pending);
  // For incoming connections: `pending`'s meter runs.
  void report(const PendingRef& pending, Reason reason, std::optional<Error> failed);
  void charge(Pending& pending);  // its host; or records the host's proof
  std::string refused_words(const std::string& address, int code) const;
  void refuse_soon(const PendingRef& pending, Reason reason, Error error);

  boost::asio::io_context& context_;
  const Config config_;
  const OnOutcome on_outcome_;
  std::string address_;
  std::optional<LocalListener> local_;
  OwnDescriptor listener_;
  boost::asio::posix::stream_descriptor acceptor_;  // for async_wait; does not own the socket
  boost::asio::steady_timer rest_;                  // pause after a lack of descriptors or memory
  LogLimit not_accepted_;
  HandshakeBudget budget_;
  std::list<PendingRef> pending_;       // oldest first
  std::uint64_t next_deadline_us_ = 0;  // lower bound of the pending deadlines
  bool closed_ = false;
};

}  // namespace vmem::rdma
