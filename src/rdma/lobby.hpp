// Where connections wait until they have proved themselves: the listener, and the TCP sockets over which Handshakes run. No
// socket blocks, and each has a deadline; a visitor that says nothing, garbage, or one byte a second keeps nobody else waiting.
// When more come in than there is room for, the one that has been waiting longest without a proof has to go: a node that knows the
// secret needs milliseconds.
//
// One thread uses it. It is waited for with poll or epoll on descriptor().
#pragma once

#include <list>
#include <optional>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "rdma/handshake.hpp"
#include "rdma/socket_address.hpp"

namespace vmem::rdma {

class Lobby {
 public:
  struct Config {
    CryptoRef crypto;
    KeyringRef keyring;
    Introduction self;
    OpenEntrance open;  // none: reached at self.endpoint
    const Clock* clock = nullptr;
    std::string listen;                      // "": nobody can connect
    std::uint64_t handshake_us = 5'000'000;  // for those that come in
    std::size_t most_visitors = 64;          // of those that come in
  };
  struct Outcome {
    std::uint64_t key = 0;                     // as given to connect; 0: it came in
    std::string address;                       // of the other
    std::optional<Acquaintance> acquaintance;  // nullopt: failed
    FileDescriptor socket;                     // closed before what was opened for it
    Reason reason = Reason::refused;
    Error error;
  };

  // Errors: INVALID_OPTION for addresses that cannot be or may not be used, saying why.
  static Result<std::unique_ptr<Lobby>> create(Config config);
  const std::string& address() const noexcept { return address_; }
  int descriptor() const noexcept { return epoll_.get(); }

  // Whether connect may be called with it: without a secret, only this machine's own addresses.
  Status may_connect(const SocketAddress& address) const;
  // Ends in one Outcome with this key, unless it is cancelled. REQUIRES: may_connect.
  void connect(std::uint64_t key, const SocketAddress& address, std::uint64_t deadline_us);
  void cancel(std::uint64_t key);
  // Does what can be done without waiting, and appends what ended; whether there was something to do.
  bool progress(std::vector<Outcome>& outcomes);
  // Nobody comes in any more, and who is here fails.
  void close();
  bool empty() const noexcept { return visitors_.empty(); }

 private:
  struct Visitor {
    std::uint64_t key = 0;
    SocketAddress address;
    Handshake handshake;
    FileDescriptor socket;  // closed before what the handshake has opened: who still has it finds nobody there
    std::uint64_t deadline_us = 0;
    std::vector<std::byte> out;
    std::optional<Error> failed;
    bool leaving = false;  // nobody waits for it: it stays while the peer may use what was opened for it
    Reason reason = Reason::refused;
  };
  using Visitors = std::list<Visitor>;  // those that came in: in the order of their arrival

  explicit Lobby(Config config) : config_(std::move(config)) {}
  const Secret* secret() const noexcept { return config_.keyring ? &config_.keyring->own() : nullptr; }
  Status check_secret(const SocketAddress& address, const char* what) const;
  Status listen();
  void accept();
  void make_room();
  void admit(FileDescriptor socket);
  void leave(Visitor& visitor);
  bool is_over(const Visitor& visitor) const;
  void watch(Visitor& visitor, int operation, std::uint32_t events) const;
  void serve(Visitor& visitor, std::uint32_t events);
  static void read(Visitor& visitor);
  static void write(Visitor& visitor);
  static void fail_visitor(Visitor& visitor, Reason reason, Error error);
  void expire();
  void collect(std::vector<Outcome>& outcomes);

  Config config_;
  std::string address_;
  FileDescriptor epoll_, listener_;
  Visitors visitors_;
  std::size_t came_in_ = 0;             // of visitors_
  std::uint64_t accept_again_us_ = 0;   // no descriptors were left: the listener rests. 0: it does not
  std::uint64_t next_deadline_us_ = 0;  // no visitor's deadline is before
};

}  // namespace vmem::rdma
