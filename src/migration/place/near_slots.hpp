// Slots of near memory: host memory and memory that other GPUs lend. A resident page may keep its
// slot, to save the store when it is evicted; such slots are the first to be released. The mover
// only. A slot is dropped only while no transfer uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>
#include <vector>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/page/losses.hpp"
#include "migration/page/transfers.hpp"
#include "migration/policy/copy_cache.hpp"

namespace vmem::migration {

class NearSlots {
 public:
  NearSlots(Core& core, const Transfers& transfers, const Losses& losses);

  struct Near {
    tiers::Tier* tier = nullptr;
    tiers::InPlaceTier* in_place = nullptr;
    tiers::Abilities abilities;
  };
  std::size_t count() const { return near_.size(); }
  const Near& operator[](std::size_t near) const { return near_[near]; }  // 0: host memory
  const Near& of(const Page& page) const { return near_[page.near]; }

  static void assign(PageRef ref, NearSlot place);  // a new slot, without contents
  void drop(PageRef ref);                           // releases the page's slot
  // For a page of an ended region, with or without a slot; tells no policy.
  void drop_ended(PageRef ref);

  // Offers the slot of a page that owns a frame for release. still_offered: forgets the offer if
  // the page has lost its frame or slot since.
  void offer_slot(PageRef ref);
  const std::deque<PageRef>& offered(std::size_t near) const { return offered_[near]; }
  static bool still_offered(PageRef ref);
  struct Released {
    std::uint64_t bytes = 0;
    Attempt more = Attempt::never;  // never, or when to try again for more
  };
  enum class Copies { of_this_size, of_any_size, of_read_mostly_too };
  // Releases offered slots of at least `bytes` in all, if it can.
  Released release_offered(std::size_t near, std::uint64_t bytes, Copies which);

  // Host slots that pages of read-only regions pass through on their way to HBM. Throws
  // std::bad_alloc.
  void pass_through(PageRef ref);
  const std::deque<PageRef>& passing() const { return passing_; }
  // A use of the page's host slot has ended. If the page is in HBM by now, its slot is released,
  // unless it is worth keeping as a copy (copies). Does nothing while the slot is in use.
  void passed_through(PageRef ref);
  enum class Passing { all, waiting };  // waiting: without copies, and without those used in place
  std::uint64_t passing_bytes(Passing which) const;

  // Copies of pages of regions that other nodes published: clean, within a quota, and released
  // before any page of this program leaves host memory.
  void keep_copies_of(const Region& region) { published_.insert(&region); }
  bool keeps_copies_of(const Region& region) const { return region.read_only && published_.contains(&region); }
  const CopyCache& copies() const { return copies_; }
  void copy_used(PageRef ref);
  // Of pages that only pass through or are copies: free, or soon. At most `most`.
  std::uint64_t soon_free_bytes(std::uint64_t most) const;

  // Tells the policy that chooses pages to spill: only pages in host memory and not in HBM can be
  // spilled. left_host_memory is harmless for other pages.
  void came_to_host_memory(PageRef ref);
  void left_host_memory(PageRef ref);

  void forget(const Region& region);

 private:
  void forget_passing(PageRef ref);
  bool comes_free(PageRef ref) const;

  Core& core_;
  const Transfers& transfers_;
  const Losses& losses_;
  std::vector<Near> near_;  // host memory, then each lent memory
  // Resident pages with a slot that can be released, by near memory. Checked when popped.
  std::vector<std::deque<PageRef>> offered_;
  // Of read-only regions, with a host slot; copies that were used are in copies_ only.
  std::deque<PageRef> passing_;
  CopyCache copies_;
  std::unordered_set<const Region*> published_;
};

}  // namespace vmem::migration
