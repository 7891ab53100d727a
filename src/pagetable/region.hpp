// Regions and pages. A page's state word and its region's counters are shared with launching threads; everything else is
// written and read by the mover alone.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "gpu/kernels/fingerprint.hpp"
#include "pagetable/types.hpp"

namespace vmem::pagetable {

// What a launching thread needs to know of a page, in one atomic word.
class PageState {
 public:
  static constexpr std::uint32_t kAccessMask = 3;     // Access: what the mapping at the page's address allows
  static constexpr std::uint32_t kPending = 1u << 2;  // usable in stream order only after the page's ready event
  static constexpr std::uint32_t kNotify = 1u << 3;   // the mover wants to hear of the next use
  static constexpr std::uint32_t kLost = 1u << 4;     // no valid copy is left
  static constexpr std::uint32_t kInPlace = 1u << 5;  // the mapping shows host memory
  static constexpr std::uint32_t kAttention = kPending | kNotify | kLost | kInPlace;

  constexpr explicit PageState(std::uint32_t word) : word_(word) {}
  constexpr std::uint32_t word() const { return word_; }
  constexpr Access access() const { return Access(word_ & kAccessMask); }
  constexpr bool allows(Access wanted) const { return (word_ & kAccessMask) >= std::uint32_t(wanted); }
  constexpr bool has(std::uint32_t bits) const { return (word_ & bits) != 0; }
  constexpr PageState with(Access access) const { return PageState((word_ & ~kAccessMask) | std::uint32_t(access)); }
  constexpr PageState set(std::uint32_t bits) const { return PageState(word_ | bits); }
  constexpr PageState clear(std::uint32_t bits) const { return PageState(word_ & ~bits); }

 private:
  std::uint32_t word_;
};

inline constexpr std::uint32_t kNoFrame = 0xffffffff;

// A page's copy below host memory, of pages that have had one. Pages of read-only regions have it from birth, and for good.
struct SpilledCopy {
  std::uint32_t slot = kNoFrame;  // in the spill tier, or that of files
  std::uint64_t version = 0;      // of the copy; 0: none
  std::uint64_t transfer = 0;     // between it and the page's slot in host memory, 0 if it has ended
  bool doubtful =
      false;  // the slot may have been written without a new version: to be compared before the copy is believed
  bool wanted = false;        // read back for a use to come
  bool listed = false;        // among those that have a slot
  bool known = false;         // its bytes have this fingerprint
  bool through_host = false;  // it has come wrong, or not at all, straight into a frame
  gpu::Fingerprint fingerprint;
};

enum class Mapped : std::uint8_t {
  nothing,
  frame,
  slot
};  // what the page's address shows: nothing, HBM, near memory in place

struct Page {
  // Shared with launching threads.
  std::atomic<std::uint32_t> state{0};

  // The mover's.
  Mapped mapped = Mapped::nothing;
  bool standby = false;       // `frame` is in the pool's free list and still holds this page's bytes
  bool pinned : 1 = false;    // advice
  bool in_place : 1 = false;  // advice
  bool kept : 1 = false;      // reached in ways that nobody sees: it stays mapped as it is
  bool read_mostly : 1 = false;
  bool prefetched : 1 = false;  // in HBM by prefetch, not yet used
  bool last_write : 1 = false;  // the last use was a write: fetch it writable
  bool retained : 1 = false;    // queued as a holder of a slot that may be taken
  bool promoting : 1 = false;   // queued for promotion
  std::uint8_t cpu_users = 0;   // vmem_read and vmem_write under way on it
  std::uint8_t near = 0;        // which near memory `slot` is in: 0 the host's, else a peer's
  // Of an undeclared region: so many more times it is fetched as if to be written; what was found when it left, again and again.
  std::uint8_t writes_believed = 0;
  std::uint8_t writes_in_a_row = 0;
  std::uint32_t frame = kNoFrame;     // HBM
  std::uint32_t slot = kNoFrame;      // backing copy, in near memory
  std::uint32_t life = 0;             // of its region, when the page was last used
  std::uint64_t version = 0;          // of the contents; 0: never written
  std::uint64_t slot_version = 0;     // of the backing copy; it is current when equal to `version`
  std::uint64_t wait = 0;             // transfer that must end before the mapping may be used, 0 if none
  std::uint64_t store = 0;            // the last transfer into `slot`, 0 if it has ended
  std::atomic<void*> ready{nullptr};  // CUevent to wait for while kPending is set; read by launching threads
  std::unique_ptr<SpilledCopy> spilled;
  // The last uses, one per stream; when three streams use the page at once the eldest moves to the region.
  std::array<Stamp, 2> uses{};

  bool slot_current() const { return slot != kNoFrame && slot_version == version; }
  bool spilled_current() const { return spilled != nullptr && version != 0 && spilled->version == version; }
};
static_assert(sizeof(Page) <= 96, "a page costs at most 128 bytes with the policy's 24 and the region map");

enum class RegionState : std::uint32_t { empty, live, ending };

struct Region {
  // Constant while live.
  RegionId id;
  Granule first;
  std::uint32_t granules = 0;
  std::uint32_t page_shift = 0;  // log2 of granules in a page
  std::uint32_t page_count = 0;
  std::uint64_t bytes = 0;  // as asked for
  int device = 0;           // index into the runtime's devices
  // Of a program that does not say what it writes: that is found out when a page leaves.
  bool undeclared = false;
  // Its pages are copies of a file's: they have their bytes from birth, are mapped read-only, and leave without being stored.
  bool read_only = false;
  std::uint32_t head_bytes = 0;  // of its first page, before what was asked for
  std::unique_ptr<Page[]> pages;

  // Shared with launching threads: O(1) answers for wholly accessible regions. A counter goes up before a page's state
  // word changes for the worse and down after it changed for the better, so 0 is always true of the words.
  // In a cache line that the mover leaves alone as long as nothing changes.
  alignas(64) Span whole;  // all its granules, for reading; constant while live, as is `shared`
  bool shared = false;     // slabs of small allocations: never served in place
  std::atomic<RegionState> state{RegionState::empty};
  std::atomic<std::uint32_t> devices{0};  // bit i: device i may access the mappings
  std::atomic<std::uint32_t> unreadable{0};
  std::atomic<std::uint32_t> unwritable{0};
  std::atomic<std::uint32_t> attention{0};
  // Of an undeclared region: freed, and kept for the next allocation; and how often that happened. What a page held in an
  // earlier life is of no use to anybody.
  std::atomic<bool> dead{false};
  std::atomic<std::uint32_t> life{0};
  std::atomic<bool> tells_changes{
      false};  // the mover is told of these two at once, even while all fits: a page of it was kept

  // The mover's.
  alignas(64) std::vector<Stamp> uses;  // of the whole region, one per stream
  std::uint32_t end_cursor = 0;         // while ending: pages released so far
  std::uint32_t mapping_devices = 0;    // as `devices`, for mappings to be made
  std::uint32_t life_told = 0;          // the policy knows of the end of every life before
  bool launched = false;                // used by launches that do not say what they write
  bool away = false;                    // among those of which not all was at hand, when that was last looked at

  std::uint64_t page_bytes() const { return kGranuleBytes << page_shift; }
  std::uint32_t page_at(std::uint32_t granule) const { return (granule - first.index) >> page_shift; }
  std::uint32_t granule_of(std::uint32_t page) const { return first.index + (page << page_shift); }
  std::uint32_t end_granule() const { return first.index + granules; }
  PageId page_id(std::uint32_t index) const { return {id, index}; }
};

// Stores a page's new state and keeps its region's counters true (see Region). Only the mover calls it; launching threads may
// clear kNotify at the same time, which the exchange below respects.
void publish_state(Region& region, Page& page, PageState next);
// Clears kNotify from a launching thread; true for the one thread that cleared it.
bool take_notify(Region& region, Page& page);

}  // namespace vmem::pagetable
