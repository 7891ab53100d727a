// Which of several queues goes next, one for each Order: the most urgent that has something, or one
// that too many have passed. So nobody waits for ever behind what is more urgent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "rdma/node/wire.hpp"

namespace vmem::rdma {

class OrderTurns {
 public:
  static constexpr std::uint32_t kMostPassed = 8;

  // `waiting`: a queue for each order. nullopt: all are empty.
  template <typename Queues>
  std::optional<std::size_t> next(const Queues& waiting) const {
    std::optional<std::size_t> next;
    for (std::size_t order = wire::kOrders; order-- > 0;) {
      if (waiting[order].empty()) continue;
      if (passed_[order] >= kMostPassed) return order;
      next = order;
    }
    return next;
  }
  // The first of that order has left its queue.
  template <typename Queues>
  void went(std::size_t order, const Queues& waiting) {
    passed_[order] = 0;
    for (std::size_t less = order + 1; less < wire::kOrders; ++less) passed_[less] += waiting[less].empty() ? 0 : 1;
  }

 private:
  std::array<std::uint32_t, wire::kOrders> passed_{};  // what went before the first of each
};

}  // namespace vmem::rdma
