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
#include "migration/place/need_below.hpp"
#include "migration/place/store_pacing.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

class Request;

// Whether somebody waits for a page that is loaded.
enum class Wanted : std::uint8_t { now, later };

class Below {
 public:
  // Bytes in flight in one direction, by queue.
  struct InFlightBytes {
    std::uint64_t total = 0;
    std::map<std::uint32_t, std::uint64_t> by_queue;

    std::uint64_t in(std::uint32_t queue) const {
      const auto found = by_queue.find(queue);
      return found == by_queue.end() ? 0 : found->second;
    }
    // How many queues have bytes in flight once this one has.
    std::uint64_t queues_with(std::uint32_t queue) const {
      return by_queue.size() + (by_queue.contains(queue) ? 0 : 1);
    }
    // Throws std::bad_alloc.
    void add(std::uint32_t queue, std::uint64_t bytes) {
      by_queue[queue] += bytes;
      total += bytes;
    }
    void remove(std::uint32_t queue, std::uint64_t bytes) noexcept {
      total -= bytes;
      const auto found = by_queue.find(queue);
      found->second -= bytes;
      if (found->second == 0) by_queue.erase(found);
    }
  };

  Below(Core& core, Transfers& transfers, NeedBelow& need) : core_(core), transfers_(transfers), need_(need) {}

  bool any() const { return core_.config.spill != nullptr || has_sources() || has_rescues(); }
  // The tier of a page below, and what it can do.
  tiers::Tier& of(PageRef ref) const { return from_source(ref) ? *core_.config.files : *core_.config.spill; }
  const tiers::Abilities& abilities_of(PageRef ref) const {
    return from_source(ref) ? core_.abilities.files : core_.abilities.spill;
  }
  static bool from_source(PageRef ref) {
    return ref.region->read_only || (ref.page().spilled != nullptr && ref.page().spilled->from_source);
  }

  // Gives a read-only region's pages their contents: version 1, from `first` on.
  void add_source(Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first);
  void remove_source(const Region& region) { sources_.erase(&region); }
  bool has_sources() const { return !sources_.empty(); }
  // A frozen region's pages whose bytes are lost here are loaded from this source, page 0 from slot
  // `first`. Until the region ends.
  void add_rescue(const Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first) {
    rescues_.insert_or_assign(&region, Rescue{std::move(source), first});
  }
  bool has_rescues() const { return !rescues_.empty(); }
  // No copy of the page is left here. True: the next load takes it from the region's rescue source.
  bool rescue(PageRef ref, const Error& why);
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
  Status submit(PageRef ref, tiers::Direction direction, Wanted wanted = Wanted::now);
  // `queue`: queue_of the page whose transfer it is. Called before it is submitted: throws
  // std::bad_alloc.
  void transfer_begins(tiers::Direction direction, std::uint32_t queue, std::uint64_t bytes) {
    in_flight(direction).add(queue, bytes);
  }
  void transfer_ends(tiers::Direction direction, std::uint32_t queue, std::uint64_t bytes) noexcept {
    in_flight(direction).remove(queue, bytes);
  }
  const InFlightBytes& storing() const { return storing_; }
  const InFlightBytes& loading() const { return loading_; }
  // Of transfers between the page's slot below and host memory (QueueingTier). REQUIRES: a slot.
  std::uint32_t queue_of(PageRef ref) const;
  // Somebody waits for the page, whose load is in flight.
  void hurry(PageRef ref);
  // Where a page's load for another node may wait. Error: TIMEOUT, at once, if too many wait there
  // already: a lender that is silent, or slow, delays few of the pages that others ask for.
  // REQUIRES: a slot below.
  Result<std::uint32_t> queue_for_others(PageRef ref) const;
  // From one step of the request to its next, which calls waits_no_more(). Throws std::bad_alloc.
  void waits_for_others(const Request* request, std::uint32_t queue) {
    waiting_for_others_.insert_or_assign(request, queue);
  }
  void waits_no_more(const Request* request) { waiting_for_others_.erase(request); }
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
  InFlightBytes& in_flight(tiers::Direction direction) {
    return direction == tiers::Direction::store ? storing_ : loading_;
  }

  Core& core_;
  Transfers& transfers_;
  NeedBelow& need_;
  StorePacing pacing_;
  std::unordered_map<const Region*, std::shared_ptr<tiers::PageSource>> sources_;
  struct Rescue {
    std::shared_ptr<tiers::PageSource> source;
    tiers::SlotId first = 0;
  };
  std::unordered_map<const Region*, Rescue> rescues_;
  std::uint64_t rescued_ = 0;  // pages; logged at every power of two
  // Pages with a slot in the spill tier. Checked when popped.
  std::deque<PageRef> copies_;
  std::map<PageId, LoadFailure> load_failures_;  // of live regions
  InFlightBytes storing_, loading_;
  std::map<const Request*, std::uint32_t> waiting_for_others_;  // their queues
};

}  // namespace vmem::migration
