// Regions and pages. Launching threads share a page's state word and its region's counters with the
// mover; only the mover accesses other members, except where a comment says otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gpu/kernels/fingerprint.hpp"
#include "pagetable/types.hpp"

namespace vmem::pagetable {

// A page's state for launching threads, in one atomic word.
class PageState {
 public:
  static constexpr std::uint32_t kAccessMask = 3;        // Access that the page's mapping allows
  static constexpr std::uint32_t kPending = 1u << 2;     // wait for `ready` in stream order first
  static constexpr std::uint32_t kNotify = 1u << 3;      // report the next use to the mover
  static constexpr std::uint32_t kLost = 1u << 4;        // no valid copy exists
  static constexpr std::uint32_t kInPlace = 1u << 5;     // near memory is mapped in place
  static constexpr std::uint32_t kWantsFrame = 1u << 6;  // in place for want of HBM: launches ask
  static constexpr std::uint32_t kAttention = kPending | kNotify | kLost | kWantsFrame;

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

// A page's copy below host memory, created on first use. Pages of read-only regions always have it.
struct SpilledCopy {
  std::uint32_t slot = kNoFrame;  // in the spill tier or the file tier
  std::uint64_t version = 0;      // of the copy; 0: none
  std::uint64_t transfer = 0;     // in flight between it and the host slot; 0: none
  // unverified: the page may have been written without a new version; compare before use.
  enum class Trust : std::uint8_t { verified, unverified } trust = Trust::verified;
  // through_host: a direct read into a frame failed or mismatched.
  enum class Route : std::uint8_t { direct, through_host } route = Route::direct;
  bool wanted = false;  // being read back for an imminent use
  bool listed = false;  // in the mover's list of pages with a slot in the spill tier
  // The copy in the spill tier is lost: until the next load, `slot` is one of Below::add_rescue.
  bool from_source = false;
  // Of the copy, once a load has computed it.
  std::optional<gpu::Fingerprint> fingerprint;

  // The copy cannot be older than the page.
  bool verified() const { return trust == Trust::verified; }
};

// A page's frame of HBM. resident: it is the page's. standby: it is in the pool's free list, and
// holds the page's bytes until it is reused.
enum class Residence : std::uint8_t { none, resident, standby };

// What is mapped at the page's address: nothing, HBM, or near memory in place.
enum class Mapped : std::uint8_t { nothing, frame, slot };

struct Page {
  // Shared with launching threads.
  std::atomic<std::uint32_t> state{0};

  // The mover only.
  Mapped mapped = Mapped::nothing;
  Residence residence = Residence::none;
  bool pinned : 1 = false;    // advice
  bool in_place : 1 = false;  // advice, or found to be faster
  bool kept : 1 = false;      // accessed in ways that vmem cannot track: keep its mapping
  bool read_mostly : 1 = false;
  bool prefetched : 1 = false;  // in HBM by prefetch, not used yet
  bool last_write : 1 = false;  // the last use was a write: fetch it writable
  bool offered : 1 = false;     // queued: its slot may be released
  bool promoting : 1 = false;   // queued for promotion
  std::uint8_t cpu_users = 0;   // vmem_read and vmem_write in progress
  std::uint8_t near = 0;        // near memory of `slot`: 0 the host's, else a peer's
  // Undeclared regions: the number of next fetches to treat as writes. writes_in_a_row sets it, and
  // grows while successive evictions find the page changed.
  std::uint8_t writes_believed = 0;
  std::uint8_t writes_in_a_row = 0;
  std::uint32_t frame = kNoFrame;     // HBM, unless `residence` is none
  std::uint32_t slot = kNoFrame;      // backing copy, in near memory
  std::uint64_t life = 0;             // Region::life at the page's last use
  std::uint64_t version = 0;          // of the contents; 0: never written
  std::uint64_t slot_version = 0;     // of the backing copy; current if equal to `version`
  std::uint64_t wait = 0;             // transfer to complete before the mapping is usable; 0: none
  std::uint64_t store = 0;            // last transfer into `slot`; 0: completed
  std::atomic<void*> ready{nullptr};  // CUevent to wait for while kPending; for launching threads
  std::unique_ptr<SpilledCopy> spilled;
  // The last uses, one per stream; with three streams at once the oldest moves to the region.
  std::array<Stamp, 2> uses{};

  bool has_frame() const { return residence != Residence::none; }
  bool owns_frame() const { return residence == Residence::resident; }
  bool standby() const { return residence == Residence::standby; }
  void enter_frame(std::uint32_t id) { frame = id, residence = Residence::resident; }
  void stand_by() { residence = Residence::standby; }
  void take_frame_back() { residence = Residence::resident; }
  void leave_frame() { frame = kNoFrame, residence = Residence::none; }

  bool slot_current() const { return slot != kNoFrame && slot_version == version; }
  bool spilled_current() const { return spilled != nullptr && version != 0 && spilled->version == version; }
};
static_assert(sizeof(Page) <= 96, "a page costs at most 128 bytes with the policy's 24 and the region map");

class SharedPages;

// begun: the region is to be published; writes are refused, and earlier ones may be in progress.
// done: those have ended.
enum class Freeze : std::uint8_t { none, begun, done };

enum class RegionState : std::uint32_t { empty, live, ending };

// How much of a region is in use. Without shared pages that is all of it.
struct RegionExtent {
  // Shared with launching threads.
  // Blocks share the pages (shared_pages.hpp). Null: the region is one block. Constant while live.
  std::atomic<const SharedPages*> sharing{nullptr};
  // From the first page on. Shared pages begin as blocks need them (ExtendRequest). Later ones are
  // never mapped, and the region's counters leave them out.
  std::atomic<std::uint32_t> begun_pages{0};

  // The mover only.
  std::uint32_t committed_pages = 0;  // of shared pages, dead ones may be left out
  std::uint32_t released_pages = 0;   // while the region ends: so many from the first on
  // When the region ends, its granules stop being an own part: other nodes have the addresses.
  bool keeps_range = false;
  // The policies know of all deaths up to here: of each page, or of the region as a whole.
  std::vector<std::uint64_t> deaths_told;
};

struct Region {
  // Constant while live.
  RegionId id;
  Serial serial{};
  Granule first;
  std::uint32_t granules = 0;
  std::uint32_t page_shift = 0;  // log2 of granules in a page
  std::uint32_t page_count = 0;
  std::uint64_t bytes = 0;  // as requested
  int device = 0;           // index into the runtime's devices
  // The program does not declare its writes: the mover detects them when it evicts a page.
  bool undeclared = false;
  // Its pages are copies of a file's: valid from the start, mapped read-only, and never stored.
  bool read_only = false;
  // Any thread reads it only for messages; the mover's mappings enforce it.
  std::atomic<Freeze> freeze{Freeze::none};
  std::uint32_t head_bytes = 0;  // of its first page, before the requested range
  std::unique_ptr<Page[]> pages;
  RegionExtent extent;

  // Shared with launching threads: O(1) checks for fully accessible regions. A counter is raised
  // before a page's state word gets worse and lowered after it gets better: 0 implies that no page
  // counts. The mover writes to this cache line only when something changes.
  alignas(64) Span whole;  // all its granules, for reading; constant while live
  bool slab = false;       // of small allocations; constant while live
  std::atomic<RegionState> state{RegionState::empty};
  std::atomic<std::uint32_t> devices{0};  // bit i: device i may access the mappings
  std::atomic<std::uint32_t> unreadable{0};
  std::atomic<std::uint32_t> unwritable{0};
  std::atomic<std::uint32_t> attention{0};
  // Undeclared regions: `dead` while freed and cached for the next allocation; `life` counts how
  // often that happened. A page's contents from an earlier life are worthless. With shared pages a
  // region is never dead, and `life` counts its blocks' ends.
  std::atomic<bool> dead{false};
  std::atomic<std::uint64_t> life{0};
  // True once a page of the region was kept (KeepRequest). Changes of `dead` and `life` are then
  // logged even while use tracking is off.
  std::atomic<bool> tells_changes{false};

  // The mover only.
  alignas(64) std::vector<Stamp> uses;  // of the whole region, one per stream
  std::uint32_t mapping_devices = 0;    // like `devices`, for future mappings
  bool launched = false;                // used by launches that do not declare writes
  bool away = false;                    // in the mover's list of regions not fully resident

  std::uint64_t page_bytes() const { return kGranuleBytes << page_shift; }
  std::uint32_t page_at(std::uint32_t granule) const { return (granule - first.index) >> page_shift; }
  std::uint32_t granule_of(std::uint32_t page) const { return first.index + (page << page_shift); }
  std::uint32_t end_granule() const { return first.index + granules; }
  PageId page_id(std::uint32_t index) const { return {id, index}; }
  PageKey page_key(std::uint32_t index) const { return {serial, granule_of(index)}; }
  // Nobody may write to it any more.
  bool frozen() const { return freeze.load() != Freeze::none; }
  // Nobody writes to it any more.
  bool immutable() const { return read_only || freeze.load() == Freeze::done; }
  // Whether a page may hold several allocations, whose users do not know of each other.
  bool has_strangers() const { return slab || shares(); }
  bool shares() const { return extent.sharing.load(std::memory_order_relaxed) != nullptr; }
  // `life` after the last time that the page's contents became worthless.
  std::uint64_t last_death(std::uint32_t page) const;
  bool dead_page(std::uint32_t page) const;
  // The life of which `low` are the lower half: one of the last 2^32.
  std::uint64_t whole_life(std::uint32_t low) const {
    const std::uint64_t now = life.load(std::memory_order_seq_cst);
    return now - std::min<std::uint64_t>(now, std::uint32_t(now) - low);
  }
};

// Stores a page's new state and keeps its region's counters true (see Region). The mover only; safe
// against launching threads that clear kNotify concurrently.
void publish_state(Region& region, Page& page, PageState next);
// Any thread. Clears kNotify; true for the one thread that cleared it.
bool take_notify(Region& region, Page& page);

}  // namespace vmem::pagetable
