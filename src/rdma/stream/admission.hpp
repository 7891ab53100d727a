// Connections until their peers are trusted: the listener, TLS handshakes or the check of the peer's
// user, and one Hello in each direction. Before the proof nothing is read but TLS itself; a Hello is
// 64 bytes of fixed layout. What takes too long, is one too many, or costs too much time, goes.
//
// Thread: the one that runs the io_context.
#pragma once

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
#include "rdma/socket_address.hpp"
#include "rdma/stream/byte_stream.hpp"
#include "rdma/stream/handshake_budget.hpp"
#include "rdma/stream/local_socket.hpp"

namespace vmem::rdma::stream {

struct Hello {
  enum class Role : std::uint16_t { initiator = 1, responder = 2 };
  std::array<char, 8> magic{'v', 'm', 'e', 'm', 'n', 'o', 'd', 'e'};
  std::uint16_t version = 1;
  Role role = Role::initiator;
  std::uint16_t channels = 1;  // that this node is willing to have
  std::uint16_t index = 0;     // of this connection in its link; 0: the first
  std::uint64_t node = 0, incarnation = 0;
  std::uint64_t base = 0, space_bytes = 0, page_bytes = 0;
  std::uint64_t link = 0;  // chosen by the responder of a link's first connection
};
static_assert(sizeof(Hello) == 64);

class Admission {
 public:
  struct Config {
    NodeIdentity self;
    ClusterParameters parameters;
    std::string listen;               // "": nobody can connect
    std::shared_ptr<TlsContext> tls;  // null: Unix sockets only
    const Crypto* crypto = nullptr;
    const Clock* clock = nullptr;
    std::uint16_t channels = 1;
    std::uint64_t handshake_us = 5'000'000;  // for connections that come in
    std::size_t most_pending = 64;           // of those
    std::size_t most_pending_per_host = 16;
    HandshakeLimits limits;  // of those that have not proved themselves
  };
  struct Outcome {
    std::uint64_t key = 0;  // as given to connect; 0: it came in
    std::string address;    // of the peer
    ByteStream stream;      // trusted, unless `failed`
    Hello ours, theirs;
    Reason reason = Reason::refused;
    std::optional<Error> failed;
  };
  using OnOutcome = std::function<void(Outcome)>;

  // Errors: INVALID_OPTION for addresses that cannot be or may not be used, saying why.
  static Result<std::unique_ptr<Admission>> create(boost::asio::io_context& context, Config config,
                                                   OnOutcome on_outcome);
  ~Admission();
  const std::string& address() const noexcept { return address_; }

  // Whether connect may be called with it: without a secret, only this machine's loopback addresses.
  Status may_use(const SocketAddress& address, const char* what) const;
  // Ends in one outcome with this key, unless it is cancelled. `link` 0: the first connection of a link.
  void connect(std::uint64_t key, const SocketAddress& address, std::uint64_t link, std::uint16_t index,
               std::uint64_t deadline_us);
  void cancel(std::uint64_t key);
  // Ends what is late; true if something was.
  bool expire();
  // Nobody comes in any more, and who is pending goes.
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
  bool is_stranger(const Pending& pending) const;
  void turn_away(const std::string& address, FileDescriptor socket);
  void make_room(Pending& for_this);
  Result<ByteStream> secure(FileDescriptor socket, TlsRole role, const std::string& host) const;
  void advance(const PendingRef& pending);  // REQUIRES, like finish(): the meter of `pending` runs
  Result<bool> step(Pending& pending);
  Result<bool> send_hello(Pending& pending);
  Result<bool> read_hello(Pending& pending);
  Status check(const Hello& theirs, Hello::Role role) const;
  void wait(const PendingRef& pending);
  void finish(const PendingRef& pending, Reason reason, std::optional<Error> failed);
  void settle(Pending& pending);  // its host pays, or is known to have proved itself
  std::string refused_words(const std::string& address, int code) const;
  void refuse_soon(const PendingRef& pending, Reason reason, Error error);

  boost::asio::io_context& context_;
  const Config config_;
  const OnOutcome on_outcome_;
  std::string address_;
  std::optional<LocalListener> local_;
  OwnDescriptor listener_;
  boost::asio::posix::stream_descriptor acceptor_;  // waits only
  boost::asio::steady_timer rest_;                  // while no descriptors are left
  LogLimit not_accepted_;
  HandshakeBudget budget_;
  std::list<PendingRef> pending_;       // in the order of their beginning
  std::uint64_t next_deadline_us_ = 0;  // no deadline is before
  bool closed_ = false;
};

}  // namespace vmem::rdma::stream
