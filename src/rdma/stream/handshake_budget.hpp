// How much processor time strangers may have: token buckets, one for each host and one for all hosts
// together. Only time that ends without a proof is paid for.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "rdma/socket_address.hpp"

namespace vmem::rdma::stream {

class HandshakeBudget {
 public:
  struct Limits {
    std::uint64_t host_us = 1'000'000, host_us_per_s = 200'000;
    std::uint64_t all_us = 2'000'000, all_us_per_s = 500'000;
    std::size_t hosts = 4096;  // past these, hosts share what is for all
  };
  HandshakeBudget() : HandshakeBudget(Limits{}) {}
  explicit HandshakeBudget(Limits limits) : limits_(limits) {}

  // Who shares a budget: an IPv4 address, or the 64 bits that a network gives to an IPv6 host.
  static std::string host_of(const SocketAddress& address);

  // False if the host, or all together, have used up what they had.
  bool may_begin(const std::string& host, std::uint64_t now_us);
  void pay(const std::string& host, std::uint64_t us, std::uint64_t now_us);

 private:
  struct Bucket {
    std::uint64_t used_us = 0;
    std::uint64_t at_us = 0;  // when used_us was brought up to date
  };
  static void refill(Bucket& bucket, std::uint64_t us_per_s, std::uint64_t now_us);
  Bucket* find(const std::string& host, std::uint64_t now_us);
  void forget_idle(std::uint64_t now_us);

  const Limits limits_;
  Bucket all_;
  std::unordered_map<std::string, Bucket> hosts_;  // of those that owe something
};

}  // namespace vmem::rdma::stream
