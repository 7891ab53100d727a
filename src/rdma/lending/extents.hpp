// Allocator of page room in a range of memory or disk. First fit keeps the far end free for large
// pages. Pure; the caller locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace vmem::rdma {

class Extents {
 public:
  Extents() = default;
  Extents(std::uint64_t first, std::uint64_t bytes) { give_back(first, bytes); }

  std::optional<std::uint64_t> take(std::uint64_t bytes);
  void give_back(std::uint64_t first, std::uint64_t bytes);
  std::uint64_t free_bytes() const noexcept { return free_bytes_; }
  std::uint64_t largest_bytes() const noexcept;

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // first → bytes; no two extents touch
  std::uint64_t free_bytes_ = 0;
};

}  // namespace vmem::rdma
