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

// The extent with this byte; end: none.
Extents::Map::const_iterator Extents::around(std::uint64_t byte) const noexcept {
  auto next = free_.upper_bound(byte);
  if (next == free_.begin()) return free_.end();
  --next;
  return byte - next->first < next->second ? next : free_.end();
}

std::uint64_t Extents::bytes_from(std::uint64_t first) const noexcept {
  const auto found = around(first);
  return found == free_.end() ? 0 : found->first + found->second - first;
}

bool Extents::contains(Extent extent) const noexcept { return bytes_from(extent.first) >= extent.bytes; }

bool Extents::contains_all(const Extents& others) const noexcept {
  return std::ranges::all_of(others.free_, [&](const auto& each) { return contains(Extent{each.first, each.second}); });
}

std::vector<Extent> Extents::all() const {
  std::vector<Extent> list;
  for (const auto& [first, bytes] : free_) list.push_back({first, bytes});
  return list;
}

std::vector<Extent> Extents::missing_of(Extent extent) const {
  std::vector<Extent> missing;
  std::uint64_t at = extent.first;
  while (at < extent.end()) {
    at = std::min(extent.end(), at + bytes_from(at));
    const auto next = free_.upper_bound(at);
    const std::uint64_t until = next == free_.end() ? extent.end() : std::min(extent.end(), next->first);
    if (until > at) missing.push_back({at, until - at});
    at = until;
  }
  return missing;
}

void Extents::take_at(Extent extent) {
  if (extent.bytes == 0) return;
  const auto found = around(extent.first);
  const Extent there{found->first, found->second};
  free_.erase(found);
  if (extent.first > there.first) free_.emplace(there.first, extent.first - there.first);
  if (extent.end() < there.end()) free_.emplace(extent.end(), there.end() - extent.end());
  free_bytes_ -= extent.bytes;
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
