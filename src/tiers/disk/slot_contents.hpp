// What the slots of a disk tier hold. Entries of released slots stay: the slot's next store
// replaces them, and identities differ meanwhile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tiers/disk/slot_header.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class SlotContents {
 public:
  // ---- the tier's thread ----

  // The slot's page, if its identity is `wanted`.
  std::optional<StoredPage> find(SlotId slot, const PageIdentity& wanted) const {
    const auto found = pages_.find(slot);
    if (found == pages_.end() || found->second.identity != wanted) return std::nullopt;
    return found->second;
  }
  void set(SlotId slot, const StoredPage& page) { pages_[slot] = page; }
  void erase(SlotId slot) { pages_.erase(slot); }  // from here on its bytes may be a mixture

  // Allocated bytes of a slot of `slot_bytes`, from its header on; the rest is a hole.
  std::uint64_t allocated_bytes(SlotId slot, std::uint64_t slot_bytes) const {
    const auto hole = punched_.find(slot);
    return hole == punched_.end() ? slot_bytes : std::min(hole->second, slot_bytes);
  }
  void set_allocated_bytes(SlotId slot, std::uint64_t bytes, std::uint64_t slot_bytes) {
    if (bytes < slot_bytes) {
      punched_[slot] = bytes;
    } else {
      punched_.erase(slot);
    }
  }

  // ---- any thread ----

  // Whether the slot holds an uncompressed page, which can be read straight into a frame.
  bool plain(SlotId slot) const {
    const std::lock_guard lock(mutex_);
    return plain_.contains(slot);
  }
  void set_plain(SlotId slot) {
    const std::lock_guard lock(mutex_);
    plain_.insert(slot);
  }
  void reset_plain(SlotId slot) {
    const std::lock_guard lock(mutex_);
    plain_.erase(slot);
  }

 private:
  // The tier's thread.
  std::unordered_map<SlotId, StoredPage> pages_;
  std::unordered_map<SlotId, std::uint64_t> punched_;  // slot with a hole → allocated bytes

  mutable std::mutex mutex_;
  std::unordered_set<SlotId> plain_;  // guarded by mutex_
};

}  // namespace vmem::tiers
