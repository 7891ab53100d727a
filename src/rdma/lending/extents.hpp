// A set of bytes in a range of memory or disk, as extents that do not touch; and an allocator of
// room in it. First fit keeps the far end free for large pages. Pure; the caller locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace vmem::rdma {

struct Extent {
  std::uint64_t first = 0, bytes = 0;
  std::uint64_t end() const noexcept { return first + bytes; }
  bool operator==(const Extent&) const = default;
};

class Extents {
 public:
  Extents() = default;
  Extents(std::uint64_t first, std::uint64_t bytes) { give_back(first, bytes); }

  std::optional<std::uint64_t> take(std::uint64_t bytes);
  // Takes these bytes. REQUIRES: contains().
  void take_at(Extent extent);
  // REQUIRES: none of these bytes is in the set.
  void give_back(std::uint64_t first, std::uint64_t bytes);
  void give_back(Extent extent) { give_back(extent.first, extent.bytes); }

  bool contains(Extent extent) const noexcept;
  bool contains_all(const Extents& others) const noexcept;
  // From `first` on without a gap; 0: that byte is not in the set.
  std::uint64_t bytes_from(std::uint64_t first) const noexcept;
  std::vector<Extent> all() const;  // by address
  // What of the extent is not in the set.
  std::vector<Extent> missing_of(Extent extent) const;
  std::size_t count() const noexcept { return free_.size(); }
  std::uint64_t free_bytes() const noexcept { return free_bytes_; }
  std::uint64_t largest_bytes() const noexcept;

 private:
  using Map = std::map<std::uint64_t, std::uint64_t>;
  Map::const_iterator around(std::uint64_t byte) const noexcept;

  Map free_;  // first → bytes; no two extents touch
  std::uint64_t free_bytes_ = 0;
};

}  // namespace vmem::rdma
