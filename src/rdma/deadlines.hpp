// Which peers have something that is due when. A peer has as many as it has operations.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "rdma/transport.hpp"

namespace vmem::rdma {

class Deadlines {
 public:
  void add(std::uint64_t deadline_us, PeerId peer) { all_.emplace(deadline_us, peer); }
  // One that was added.
  void remove(std::uint64_t deadline_us, PeerId peer) {
    if (const auto found = all_.find({deadline_us, peer}); found != all_.end()) all_.erase(found);
  }
  bool expired(std::uint64_t now_us) const noexcept { return !all_.empty() && all_.begin()->first <= now_us; }
  // For each that has passed: they stay until they are removed.
  template <class Visit>
  void for_expired(std::uint64_t now_us, Visit visit) const {
    for (auto at = all_.begin(); at != all_.end() && at->first <= now_us; ++at) visit(at->second);
  }

 private:
  std::multiset<std::pair<std::uint64_t, PeerId>> all_;
};

}  // namespace vmem::rdma
