// Which copies in host memory of other nodes' published pages go first: the least recently used. It
// counts their bytes against a quota. Pure: the mover releases the slots.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>

#include "pagetable/types.hpp"

namespace vmem::migration {

class CopyCache {
 public:
  explicit CopyCache(std::uint64_t quota_bytes) : quota_bytes_(quota_bytes) {}

  // The page got a slot. Its copy counts, and is no candidate before its first use. REQUIRES: it
  // has none. Throws std::bad_alloc.
  void begins(pagetable::PageId page, std::uint64_t bytes);
  // The copy is the most recently used one now. Does nothing for a page without one.
  void used(pagetable::PageId page) noexcept;
  // Does nothing for a page without a copy.
  void ends(pagetable::PageId page) noexcept;
  bool has(pagetable::PageId page) const { return copies_.contains(page); }
  bool is_used(pagetable::PageId page) const;

  // Of all copies, unused ones included.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t quota_bytes() const { return quota_bytes_; }
  // By how much the copies exceed the quota once there are so many bytes more.
  std::uint64_t excess(std::uint64_t more = 0) const { return bytes_ + more - std::min(bytes_ + more, quota_bytes_); }
  // Used copies, the least recently used first.
  const std::list<pagetable::PageId>& candidates() const { return used_; }
  std::uint64_t candidate_bytes() const { return candidate_bytes_; }
  std::uint64_t metadata_bytes() const;

 private:
  struct Hash {
    std::size_t operator()(pagetable::PageId page) const noexcept {
      return std::hash<std::uint64_t>()(std::uint64_t{page.region.value} << 32 | page.index);
    }
  };
  struct Copy {
    std::list<pagetable::PageId>::iterator at;
    std::uint64_t bytes = 0;
    bool used = false;
  };
  std::list<pagetable::PageId>& list_of(const Copy& copy) { return copy.used ? used_ : unused_; }

  const std::uint64_t quota_bytes_;
  std::uint64_t bytes_ = 0, candidate_bytes_ = 0;
  std::unordered_map<pagetable::PageId, Copy, Hash> copies_;
  std::list<pagetable::PageId> used_, unused_;
};

}  // namespace vmem::migration
