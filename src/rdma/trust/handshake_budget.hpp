// Limits the processor time for handshakes of unproved hosts: one token bucket per host and one
// shared by all. Only handshakes that end without a proof are charged. A host that proved itself
// lately is charged to its own bucket only. When the shared bucket is empty, a host that has not
// tried lately still gets one handshake, up to most_us for all. So a few hosts cannot lock out new
// nodes.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "rdma/transport/socket_address.hpp"

namespace vmem::rdma {

struct HandshakeLimits {
  std::uint64_t host_us = 1'000'000, host_us_per_s = 200'000;
  std::uint64_t all_us = 2'000'000, all_us_per_s = 500'000;
  std::uint64_t most_us = 4'000'000;        // limit of the shared bucket, extra handshakes included
  std::uint64_t lately_us = 60'000'000;     // since a host's last handshake without a proof
  std::uint64_t proved_us = 3'600'000'000;  // since a host's last handshake with a proof
  std::size_t hosts = 4096;                 // remembered; and as many proved hosts
};

class HandshakeBudget {
 public:
  HandshakeBudget() : HandshakeBudget(HandshakeLimits{}) {}
  explicit HandshakeBudget(HandshakeLimits limits) : limits_(limits) {}

  // The host for this and all other limits: an IPv4 address, or the /64 prefix of an IPv6 address.
  static std::string host_of(const SocketAddress& address);

  // True if a handshake may begin.
  bool admit(const std::string& host, std::uint64_t now_us);
  // Charges a handshake that ended without a proof: `us` of processor time.
  void pay(const std::string& host, std::uint64_t us, std::uint64_t now_us);
  // Records a handshake that ended with a proof.
  void proved(const std::string& host, std::uint64_t now_us);

 private:
  struct Bucket {
    std::uint64_t used_us = 0;
    std::uint64_t at_us = 0;  // time of the last refill
  };
  struct Host {
    Bucket spent;
    std::uint64_t tried_us = 0;  // last handshake without a proof so far
  };
  static void refill(Bucket& bucket, std::uint64_t us_per_s, std::uint64_t now_us);
  Host* find(const std::string& host, std::uint64_t now_us);
  Host* remember(const std::string& host, std::uint64_t now_us);
  bool proved_lately(const std::string& host, std::uint64_t now_us) const;
  bool tried_lately(const Host& host, std::uint64_t now_us) const;
  void forget_idle(std::uint64_t now_us);

  const HandshakeLimits limits_;
  Bucket all_;
  std::unordered_map<std::string, Host> hosts_;            // tried lately, or in debt
  std::unordered_map<std::string, std::uint64_t> proved_;  // last proof; strangers cannot fill it
};

}  // namespace vmem::rdma
