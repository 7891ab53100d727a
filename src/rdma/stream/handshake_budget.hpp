// How much processor time strangers may have: token buckets, one for each host and one that all hosts share. Only time that
// ends without a proof is paid for. A host that has proved itself lately has its own bucket only. When the shared bucket is
// empty, a host that has not tried lately still gets one handshake, up to a limit for all: so few hosts cannot keep a new
// node out.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "rdma/socket_address.hpp"

namespace vmem::rdma::stream {

struct HandshakeLimits {
  std::uint64_t host_us = 1'000'000, host_us_per_s = 200'000;
  std::uint64_t all_us = 2'000'000, all_us_per_s = 500'000;
  std::uint64_t most_us = 4'000'000;        // the shared bucket with what hosts take that have not tried lately
  std::uint64_t lately_us = 60'000'000;     // since a host's last handshake without a proof
  std::uint64_t proved_us = 3'600'000'000;  // since its last one with a proof
  std::size_t hosts = 4096;                 // that are remembered, and as many that have proved themselves
};

class HandshakeBudget {
 public:
  HandshakeBudget() : HandshakeBudget(HandshakeLimits{}) {}
  explicit HandshakeBudget(HandshakeLimits limits) : limits_(limits) {}

  // What one host is, for this and all other limits: an IPv4 address, or the 64 bits that a network gives to an IPv6 host.
  static std::string host_of(const SocketAddress& address);

  // Whether a handshake may begin.
  bool admit(const std::string& host, std::uint64_t now_us);
  // One has ended without a proof, after so much processor time; or with one.
  void pay(const std::string& host, std::uint64_t us, std::uint64_t now_us);
  void proved(const std::string& host, std::uint64_t now_us);

 private:
  struct Bucket {
    std::uint64_t used_us = 0;
    std::uint64_t at_us = 0;  // when used_us was brought up to date
  };
  struct Host {
    Bucket spent;
    std::uint64_t tried_us = 0;  // last, without a proof so far
  };
  static void refill(Bucket& bucket, std::uint64_t us_per_s, std::uint64_t now_us);
  Host* find(const std::string& host, std::uint64_t now_us);
  Host* remember(const std::string& host, std::uint64_t now_us);
  bool proved_lately(const std::string& host, std::uint64_t now_us) const;
  bool tried_lately(const Host& host, std::uint64_t now_us) const;
  void forget_idle(std::uint64_t now_us);

  const HandshakeLimits limits_;
  Bucket all_;
  std::unordered_map<std::string, Host> hosts_;            // that have tried lately, or owe something
  std::unordered_map<std::string, std::uint64_t> proved_;  // when. Strangers cannot fill it
};

}  // namespace vmem::rdma::stream
