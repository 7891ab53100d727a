#include "rdma/trust/handshake_budget.hpp"

#include <netinet/in.h>

#include <algorithm>

namespace vmem::rdma {

std::string HandshakeBudget::host_of(const SocketAddress& address) {
  if (address.family() == AF_INET6) {
    const auto& bytes = reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&bytes)) return {reinterpret_cast<const char*>(&bytes), 8};
  }
  return address.host();
}

void HandshakeBudget::refill(Bucket& bucket, std::uint64_t us_per_s, std::uint64_t now_us) {
  const std::uint64_t passed = now_us - std::min(now_us, bucket.at_us);
  // A refill that rounds to 0 does not advance at_us, so that frequent calls still refill.
  const std::uint64_t back = passed * us_per_s / 1'000'000;
  if (back == 0) return;
  bucket.used_us -= std::min(bucket.used_us, back);
  bucket.at_us = now_us;
}

HandshakeBudget::Host* HandshakeBudget::find(const std::string& host, std::uint64_t now_us) {
  const auto found = hosts_.find(host);
  if (found == hosts_.end()) return nullptr;
  refill(found->second.spent, limits_.host_us_per_s, now_us);
  return &found->second;
}

HandshakeBudget::Host* HandshakeBudget::remember(const std::string& host, std::uint64_t now_us) {
  Host* known = find(host, now_us);
  if (known == nullptr) {
    if (hosts_.size() >= limits_.hosts) forget_idle(now_us);
    if (hosts_.size() >= limits_.hosts) return nullptr;
    known = &hosts_.emplace(host, Host{.spent = {0, now_us}}).first->second;
  }
  known->tried_us = now_us;
  return known;
}

bool HandshakeBudget::proved_lately(const std::string& host, std::uint64_t now_us) const {
  const auto found = proved_.find(host);
  return found != proved_.end() && now_us - found->second < limits_.proved_us;
}

bool HandshakeBudget::tried_lately(const Host& host, std::uint64_t now_us) const {
  return now_us - host.tried_us < limits_.lately_us;
}

bool HandshakeBudget::admit(const std::string& host, std::uint64_t now_us) {
  refill(all_, limits_.all_us_per_s, now_us);
  const Host* const known = find(host, now_us);
  if (known != nullptr && known->spent.used_us >= limits_.host_us) return false;
  if (all_.used_us < limits_.all_us || proved_lately(host, now_us)) return true;
  if (all_.used_us >= limits_.most_us || (known != nullptr && tried_lately(*known, now_us))) return false;
  // Only if the host can be remembered: otherwise it could use this exception repeatedly.
  return remember(host, now_us) != nullptr;
}

void HandshakeBudget::pay(const std::string& host, std::uint64_t us, std::uint64_t now_us) {
  refill(all_, limits_.all_us_per_s, now_us);
  // Unproved clients at the address of a proved node must not use up the budget of new nodes.
  if (!proved_lately(host, now_us)) all_.used_us += us;
  if (Host* const known = remember(host, now_us)) known->spent.used_us += us;
}

void HandshakeBudget::proved(const std::string& host, std::uint64_t now_us) {
  if (proved_.size() >= limits_.hosts)
    std::erase_if(proved_, [&](const auto& each) { return now_us - each.second >= limits_.proved_us; });
  if (proved_.size() < limits_.hosts || proved_.contains(host)) proved_[host] = now_us;
}

void HandshakeBudget::forget_idle(std::uint64_t now_us) {
  for (auto& [name, host] : hosts_) refill(host.spent, limits_.host_us_per_s, now_us);
  std::erase_if(hosts_,
                [&](const auto& each) { return each.second.spent.used_us == 0 && !tried_lately(each.second, now_us); });
}

}  // namespace vmem::rdma
