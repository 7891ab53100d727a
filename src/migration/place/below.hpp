// Pages' copies below host memory: in slots of the spill tier, or in the files of read-only
// regions; and the transfers between them and host memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/store_pacing.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

class Below {
 public:
  Below(Core& core, Transfers& transfers) : core_(core), transfers_(transfers) {}

  bool any() const { return core_.config.spill != nullptr || has_sources(); }
  tiers::Tier& of(const Region& region) const { return region.read_only ? *core_.config.files : *core_.config.spill; }
  const tiers::Abilities& abilities_of(const Region& region) const {
    return region.read_only ? core_.abilities.files : core_.abilities.spill;
  }

  // Gives a read-only region's pages their contents: version 1, from `first` on.
  void add_source(Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first);
  void remove_source(const Region& region) { sources_.erase(&region); }
  bool has_sources() const { return !sources_.empty(); }
  // Errors: INVALID_VALUE, of a call that would write to a region that can only be read.
  Status check_writable(const Region& region) const;
  std::uint64_t source_metadata_bytes() const;
  std::uint64_t largest_file_page() const;

  // done: the page has a slot below. after_transfer: the tier may have one later. Errors:
  // OUT_OF_MEMORY; the tier's.
  Result<Attempt> need_slot(PageRef ref);
  void drop(PageRef ref);            // the copy; its slot, too, unless a transfer uses it
  static void distrust(Page& page);  // the page may have been written without a new version
  std::uint64_t metadata_bytes() const;

  // REQUIRES: a host slot and a slot below; no transfer of either in flight.
  Status submit(PageRef ref, tiers::Direction direction);
  void transfer_begins(tiers::Direction direction, std::uint64_t bytes) { in_flight(direction) += bytes; }
  void transfer_ends(tiers::Direction direction, std::uint64_t bytes) { in_flight(direction) -= bytes; }
  std::uint64_t storing_bytes() const { return storing_bytes_; }
  std::uint64_t loading_bytes() const { return loading_bytes_; }
  // True if a read into a host slot is in flight: that slot can be released when it ends.
  bool loading_to_host() const;

  StorePacing& pacing() { return pacing_; }
  const StorePacing& pacing() const { return pacing_; }
  void store_refused(PageRef ref, const Error& error);
  void store_failed(PageRef ref, const Error& error);

  // True if the page may be loaded now: no load failed, or the pause after the last failure is
  // over. Error: all tries failed; the next call starts over.
  Result<bool> may_load_now(PageRef ref);
  void load_failed(PageRef ref, const Error& error);
  void loaded(PageRef ref) { load_failures_.erase(ref.id()); }

  void forget(const Region& region);

 private:
  // A failed load; the tier below still has the page.
  struct LoadFailure {
    Error error;
    std::uint64_t version = 0;  // the page's
    std::uint32_t tries = 0;
    std::uint64_t again_at_us = 0;
  };
  std::uint64_t release_copies(std::uint64_t bytes);
  void not_stored(PageRef ref, const Error& error);
  std::uint64_t& in_flight(tiers::Direction direction) {
    return direction == tiers::Direction::store ? storing_bytes_ : loading_bytes_;
  }

  Core& core_;
  Transfers& transfers_;
  StorePacing pacing_;
  std::unordered_map<const Region*, std::shared_ptr<tiers::PageSource>> sources_;
  // Pages with a slot in the spill tier. Checked when popped.
  std::deque<PageRef> copies_;
  std::map<PageId, LoadFailure> load_failures_;  // of live regions
  std::uint64_t storing_bytes_ = 0, loading_bytes_ = 0;
};

}  // namespace vmem::migration
