// Orders in which tests use the pages of an allocation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace vmem::test {

enum class Order : std::uint8_t { forward, backward, random, strided, hot_set };
inline constexpr Order kOrders[] = {Order::forward, Order::backward, Order::random, Order::strided, Order::hot_set};

// Page numbers below `pages`, each at least once. hot_set puts one of the first three before every
// other page.
template <class Index>
std::vector<Index> visits(Order order, Index pages) {
  std::vector<Index> all(pages);
  std::iota(all.begin(), all.end(), Index{0});
  std::mt19937 random(static_cast<std::uint32_t>(pages));
  switch (order) {
    case Order::forward:
      break;
    case Order::backward:
      std::ranges::reverse(all);
      break;
    case Order::random:
      std::ranges::shuffle(all, random);
      break;
    case Order::strided:
      std::ranges::stable_sort(all, {}, [](Index page) { return page % 7; });
      break;
    case Order::hot_set:
      for (Index i = 0; i < pages; ++i)
        all.insert(all.begin() + static_cast<std::ptrdiff_t>(2 * i), i % std::min<Index>(pages, 3));
      break;
  }
  return all;
}

}  // namespace vmem::test
