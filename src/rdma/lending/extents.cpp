#include "rdma/lending/extents.hpp"

#include <algorithm>
#include <iterator>

namespace vmem::rdma {

std::optional<std::uint64_t> Extents::take(std::uint64_t bytes) {
  const auto found = std::ranges::find_if(free_, [&](const auto& each) { return each.second >= bytes; });
  if (found == free_.end() || bytes == 0) return std::nullopt;
  const auto [first, there] = *found;
  free_.erase(found);
  if (there > bytes) free_.emplace(first + bytes, there - bytes);
  free_bytes_ -= bytes;
  return first;
}

void Extents::give_back(std::uint64_t first, std::uint64_t bytes) {
  if (bytes == 0) return;
  free_bytes_ += bytes;
  auto next = free_.lower_bound(first);
  if (next != free_.end() && first + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == first) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(first, bytes);
}

std::uint64_t Extents::largest_bytes() const noexcept {
  std::uint64_t largest = 0;
  for (const auto& [first, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace vmem::rdma
