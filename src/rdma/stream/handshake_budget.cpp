#include "rdma/stream/handshake_budget.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <iterator>

namespace vmem::rdma::stream {

std::string HandshakeBudget::host_of(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    const auto& bytes = reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&bytes)) return {reinterpret_cast<const char*>(&bytes), 8};
  }
  return address.host();
}

void HandshakeBudget::refill(Bucket& bucket, std::uint64_t us_per_s, std::uint64_t now_us) {
  const std::uint64_t passed = now_us - std::min(now_us, bucket.at_us);
  // Whole refills only, so that many calls in a row lose nothing to rounding.
  const std::uint64_t back = passed * us_per_s / 1'000'000;
  if (back == 0) return;
  bucket.used_us -= std::min(bucket.used_us, back);
  bucket.at_us = now_us;
}

HandshakeBudget::Bucket* HandshakeBudget::find(const std::string& host, std::uint64_t now_us) {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return nullptr;
  refill(found->second, limits_.host_us_per_s, now_us);
  return &found->second;
}

bool HandshakeBudget::may_begin(const std::string& host, std::uint64_t now_us) {
  refill(all_, limits_.all_us_per_s, now_us);
  const Bucket* const bucket = find(host, now_us);
  return all_.used_us < limits_.all_us && (bucket == nullptr || bucket->used_us < limits_.host_us);
}

void HandshakeBudget::pay(const std::string& host, std::uint64_t us, std::uint64_t now_us) {
  refill(all_, limits_.all_us_per_s, now_us);
  all_.used_us += us;
  Bucket* bucket = find(host, now_us);
  if (bucket == nullptr) {
    if (hosts_.size() >= limits_.hosts) forget_idle(now_us);
    if (hosts_.size() >= limits_.hosts) return;
    bucket = &hosts_.emplace(host, Bucket{0, now_us}).first->second;
  }
  bucket->used_us += us;
}

void HandshakeBudget::forget_idle(std::uint64_t now_us) {
  for (auto each = hosts_.begin(); each != hosts_.end();) {
    refill(each->second, limits_.host_us_per_s, now_us);
    each = each->second.used_us == 0 ? hosts_.erase(each) : std::next(each);
  }
}

}  // namespace vmem::rdma::stream
