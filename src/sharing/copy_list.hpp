// Pages of other nodes' regions: when each was loaded last, and which of them have a copy on the
// disks. Copies go in the order of their last load, the earliest first.
//
// Pages are named by their slots in the source's tier. Pure: the owner moves the bytes. One thread.
// Costs 8 bytes for each page of a region. Functions that add throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tiers/tier.hpp"

namespace vmem::sharing {

// A slot of the disks, to be released after its last reference: a transfer holds one until it ends.
using DiskSlot = std::shared_ptr<const tiers::SlotId>;

class CopyList {
 public:
  struct Copy {
    std::uint64_t bytes = 0;
    std::uint64_t loaded = 0;  // the page's last load
    std::uint64_t ticket = 0;  // of this copy; a page's next copy has another one
    DiskSlot place;            // null: no slot yet
    bool stored = false;
  };

  void add_region(tiers::SlotId first, std::uint32_t pages);
  void remove_region(tiers::SlotId first);  // with its copies
  bool covers(tiers::SlotId page) const;
  bool any_region() const { return !regions_.empty(); }

  // The page is loaded now. Returns its load before that; 0: none. Loads are numbered in order,
  // those of all regions together. REQUIRES: covers the page.
  std::uint64_t load(tiers::SlotId page);

  // Null: the page has no copy.
  Copy* find(tiers::SlotId page);
  // From now on the page has a copy, to be stored. REQUIRES: it has none, and was loaded.
  Copy& add(tiers::SlotId page, std::uint64_t bytes);
  // No effect if the page has no copy.
  void remove(tiers::SlotId page);
  // The page whose copy goes first.
  std::optional<tiers::SlotId> eldest() const;
  std::uint64_t bytes() const { return bytes_; }  // of all copies, stored or not
  std::uint64_t metadata_bytes() const;

 private:
  std::uint64_t& last_load(tiers::SlotId page);

  std::map<tiers::SlotId, std::vector<std::uint64_t>> regions_;  // by first page: last loads
  std::unordered_map<tiers::SlotId, Copy> copies_;
  std::map<std::uint64_t, tiers::SlotId> by_load_;  // of pages with a copy
  std::uint64_t loads_ = 0, tickets_ = 0, bytes_ = 0;
};

}  // namespace vmem::sharing
