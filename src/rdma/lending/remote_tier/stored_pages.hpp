// What each slot holds: the page version, its proof, and which copies of it are valid.
//
// Thread: the node's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/trust/page_aead.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct StoredPage {
  wire::SealedPage page;    // with the seal of the bytes that the lenders store
  tiers::Checksum content;  // seal of the page itself
  PageAead::Proof proof;
  ValidCopies valid{};      // by copy
  GrantedSlot granted;      // the slot
  std::uint64_t store = 0;  // number of the last store that changed what is here
  bool storing = false;     // that store has not ended

  std::uint32_t valid_copies() const { return static_cast<std::uint32_t>(std::ranges::count(valid, true)); }
};

class StoredPages {
 public:
  struct Loss {
    std::uint64_t copies = 0;
    std::uint64_t last = 0;  // of these, the last copies of their pages
  };

  // Null: the slot holds nothing.
  const StoredPage* find(tiers::SlotId slot) const {
    const auto found = pages_.find(slot);
    return found == pages_.end() ? nullptr : &found->second;
  }
  StoredPage& at(tiers::SlotId slot) { return pages_.at(slot); }
  // Adds an empty one if the slot holds nothing.
  StoredPage& of(tiers::SlotId slot) { return pages_[slot]; }
  void forget(tiers::SlotId slot) { pages_.erase(slot); }

  // A store begins to change what the slot holds, and ends.
  void store_begins(StoredPage& page) {
    page.store = ++last_store_;
    page.storing = true;
  }
  void store_ends(tiers::SlotId slot, bool needs_repair) {
    at(slot).storing = false;
    if (needs_repair) ++revision_;
  }
  // Whether the slot holds what it held after that store, and nothing is changing it.
  bool is_unchanged(tiers::SlotId slot, std::uint64_t store) const {
    const StoredPage* const page = find(slot);
    return page != nullptr && page->store == store && !page->storing;
  }
  // Grows when a store has left a page that needs repair.
  std::uint64_t revision() const { return revision_; }
  // All slots that hold pages, in any order.
  std::vector<tiers::SlotId> slots() const {
    std::vector<tiers::SlotId> all;
    all.reserve(pages_.size());
    for (const auto& [slot, page] : pages_) all.push_back(slot);
    return all;
  }

  // Invalidates the copies in the node's room.
  Loss lose(std::uint32_t node, const CopyPlacer& placer) {
    Loss loss;
    for (auto& [slot, page] : pages_) {
      const CopyPlaces copies = placer.copies(slot);
      for (std::size_t i = 0; i < kMostReplicas; ++i) {
        if (!page.valid[i] || copies[i].node != node || !placer.is_there(copies[i])) continue;
        page.valid[i] = false;
        ++loss.copies;
        loss.last += page.valid_copies() == 0 ? 1 : 0;
      }
    }
    return loss;
  }

 private:
  std::unordered_map<tiers::SlotId, StoredPage> pages_;
  std::uint64_t last_store_ = 0, revision_ = 0;
};

}  // namespace vmem::rdma
