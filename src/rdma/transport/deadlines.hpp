// Deadlines of peers: one entry per operation, so a peer may have several.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class Deadlines {
 public:
  void add(std::uint64_t deadline_us, PeerId peer) { all_.emplace(deadline_us, peer); }
  // Removes one entry added with these values, if any.
  void remove(std::uint64_t deadline_us, PeerId peer) {
    if (const auto found = all_.find({deadline_us, peer}); found != all_.end()) all_.erase(found);
  }
  bool expired(std::uint64_t now_us) const noexcept { return !all_.empty() && all_.begin()->first <= now_us; }
  // Visits the peer of each expired entry; the entries stay until removed.
  template <class Visit>
  void for_expired(std::uint64_t now_us, Visit visit) const {
    for (auto at = all_.begin(); at != all_.end() && at->first <= now_us; ++at) visit(at->second);
  }

 private:
  std::multiset<std::pair<std::uint64_t, PeerId>> all_;
};

}  // namespace vmem::rdma
