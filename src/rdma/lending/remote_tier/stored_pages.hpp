// What each slot holds: the page version, its proof, and which copies of it are valid.
//
// Thread: the node's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <unordered_map>

#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/trust/page_aead.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct StoredPage {
  wire::SealedPage page;    // with the seal of the bytes that the lenders store
  tiers::Checksum content;  // seal of the page itself
  PageAead::Proof proof;
  std::array<bool, kMostReplicas> valid{};  // by copy

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

  // Invalidates the copies under the lease.
  Loss lose(std::uint32_t node, std::uint64_t lease, const CopyPlacer& placer) {
    Loss loss;
    for (auto& [slot, page] : pages_) {
      const CopyPlaces copies = placer.copies(slot);
      for (std::size_t i = 0; i < kMostReplicas; ++i) {
        if (!page.valid[i] || copies[i].node != node || copies[i].lease != lease) continue;
        page.valid[i] = false;
        ++loss.copies;
        loss.last += page.valid_copies() == 0 ? 1 : 0;
      }
    }
    return loss;
  }

 private:
  std::unordered_map<tiers::SlotId, StoredPage> pages_;
};

}  // namespace vmem::rdma
