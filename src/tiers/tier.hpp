// The interface between the mover and the places that hold copies of pages ("Add a tier" in
// docs/extending.md). A tier runs transfers in GPU stream order (host memory, a peer's HBM: an
// event signals completion to consumers) or outside it (disks, other nodes: only poll reports
// completion).
//
// Threads: any thread calls `usage`, for statistics; one thread, the mover's, makes all other
// calls. No call but `finish` may block or wait. A tier with threads of its own gets a callback in
// its configuration and calls it, without a lock held, when poll has completions or when allocate
// may succeed after `later` or a TIMEOUT: the mover sleeps meanwhile.
//
// Units: sizes are bytes; page sizes are powers of two, at least pagetable::kGranuleBytes.
//
// Errors of calls: DEVICE_LOST and failures of the driver end the mover; others are told to the
// caller whose page it is. A transfer's error is in its completion.
//
// Abilities that only some tiers have are interfaces of their own, below; a tier also inherits
// those that it has. They are looked up once, where the tier is registered: tiers/abilities.hpp.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "gpu/kernels/fingerprint.hpp"
#include "pagetable/types.hpp"

namespace vmem::tiers {

// Space for one page's bytes in a tier. Below 2^30: StackedTier uses the two highest bits. Released
// ids are granted again.
using SlotId = std::uint32_t;

enum class Direction : std::uint8_t { load, store };  // tier → HBM frame, HBM frame → tier

// A copy of one page. From submit to its completion, the memory that it names belongs to the tier:
// nobody else writes to it or frees it, and of a load nobody reads it.
struct Transfer {
  pagetable::PageKey page;
  // A load has to give the bytes of the store with the same page and version, or fail.
  std::uint64_t version = 0;
  SlotId slot = 0;
  // Tiers that move device memory: window address of the HBM frame, or any other address that the
  // device's copies can reach.
  CUdeviceptr frame = 0;
  // Of a load: `frame` is not HBM of the device, so only the device's own engines need reach it.
  bool frame_elsewhere = false;
  // Tiers that move host memory: the page's bytes in pinned host memory, a multiple of 4096. Null:
  // a load straight into `frame`, see FrameLoadingTier.
  std::byte* host = nullptr;
  std::uint64_t bytes = 0;  // the slot's page size
  int device = 0;
  Direction direction = Direction::load;
  // A load that nobody waits for yet: see QueueingTier.
  bool ahead = false;
  std::array<CUevent, 2> after{};  // the transfer starts after these events; null entries: none
  // Pages of one kind hold similar data, like the pages of a region: tiers apply what they learn of
  // one page, e.g. its compression ratio, to the next.
  std::uint32_t kind = 0;
  // A load: the program will not declare writes to the page; a later store sets `if_changed`.
  bool watch = false;
  // A store: the slot holds the page's bytes unless the frame was written since its watched load;
  // the tier copies only what was. A tier that cannot detect writes, in general or for this slot,
  // copies, and sets this to false.
  bool if_changed = false;
  // Set only for a ComparingTier.
  std::optional<gpu::Fingerprint> compare_with;
  // Set by submit.
  std::uint64_t id = 0;    // 0: not submitted
  CUevent done = nullptr;  // stream-ordered tiers: completes with the transfer; valid until polled
};

// Unique within the process. Any thread.
std::uint64_t next_transfer_id();

// done: a load's memory holds the page; a store's slot does.
// failed: another try may succeed. After a load the slot still holds the page; after a store the
//   slot's contents are undefined.
// lost: of loads; the page's bytes are gone, proved by a checksum or by the end of who had them.
enum class Outcome : std::uint8_t { done, failed, lost };

// Of loads from other nodes. here: no bytes came, as the page is zeros or was made of what this
// process has. last_source: one node has the page besides this one, and that is not its publisher.
enum class CameFrom : std::uint8_t { anywhere, here, last_source };

struct Completion {
  std::uint64_t id = 0;
  Outcome outcome = Outcome::done;
  Error error;  // for failed and lost
  // Store with `if_changed`: the bytes differed and were copied; with `compare_with`: they differ.
  bool changed = false;
  // Of a stream-ordered tier, with `if_changed` and `changed`: so many bytes were copied, in pieces
  // that differed.
  std::uint64_t changed_bytes = 0;
  CameFrom came_from = CameFrom::anywhere;
};

struct TierInfo {
  std::string_view name;        // "host", "peer 1", "nvme"
  bool stream_ordered = false;  // Transfer::done is given
  bool addressable = false;     // the GPU can load and store slots in place: also an InPlaceTier
  // Pages in flight per direction, of any size, that keep the tier busy; with fewer it may idle.
  std::uint32_t busy_pages = 4;
};

struct TierUsage {
  std::uint64_t budget_bytes = 0;
  std::uint64_t used_bytes = 0;   // allocated slots
  std::uint64_t ready_bytes = 0;  // free slots that exist: allocate does not return `later`
  std::uint64_t held_bytes = 0;   // memory tiers: free slots, used slots, and slots being created
};

// later: a slot is being created in the background; full: the budget is used up.
enum class Grant : std::uint8_t { granted, later, full };
struct SlotGrant {
  Grant grant = Grant::full;
  SlotId slot = 0;
};

// quarantined: transfers did not end in time. The kernel or a device may still touch their memory,
// so the memory and the tier must live until the process ends.
enum class Finished : std::uint8_t { all_ended, quarantined };

class Tier {
 public:
  virtual ~Tier() = default;
  virtual const TierInfo& info() const noexcept = 0;
  virtual TierUsage usage() const = 0;
  // The budget's parts, in bytes. A page lies in exactly one part: free bytes of two parts do not
  // add up to room for a page.
  virtual std::vector<std::uint64_t> places() const { return {usage().budget_bytes}; }

  // Slots. `expect` announces the total number of slots of a size, for creation ahead of need.
  virtual void expect(std::uint64_t page_bytes, std::uint64_t count) = 0;
  // A granted slot is the caller's until `release`, and keeps its bytes. At most budget_bytes are
  // granted. Errors: TIMEOUT, which names the peer or device that does not answer now and may have
  // room later; others: why the tier cannot make room.
  virtual Result<SlotGrant> allocate(std::uint64_t page_bytes) = 0;
  virtual void release(SlotId slot) = 0;  // REQUIRES: transfers on it have completed
  // The slot's location for messages: the disk, the node or the file.
  virtual std::string where(SlotId) const { return std::string(info().name); }

  // Submits in order; sets `id`. On failure, transfers with id 0 were not submitted.
  virtual Status submit(std::span<Transfer> transfers) = 0;
  // Appends the outcomes since the last call: one for each submitted transfer, in any order;
  // stream-ordered tiers: in the order of submission, for each device and direction. By then the
  // tier does not touch the transfer's memory any more.
  virtual Status poll(std::vector<Completion>& completions) = 0;
  // Final call, and the only blocking one: returns when no transfer touches a frame any more, i.e.
  // each has completed or its device is lost; or when the tier is quarantined. The same again if
  // called again.
  virtual Finished finish() noexcept = 0;
};

// Optional: slots in memory that the GPU can load and store in place.
class InPlaceTier {
 public:
  virtual ~InPlaceTier() = default;
  virtual CUmemGenericAllocationHandle handle(SlotId slot) const = 0;
  // Address for CPU access by this process; null where impossible (a peer's HBM).
  virtual std::byte* host_address(SlotId slot, pagetable::Access access) const = 0;
  // Address for copies by the devices that reach the tier.
  virtual CUdeviceptr device_address(SlotId slot, pagetable::Access access) const = 0;
};

// Optional: fingerprints of pages, made and compared on the GPU. A store with
// Transfer::compare_with copies nothing and needs no slot: its completion says whether the frame's
// fingerprint differs.
class ComparingTier {
 public:
  virtual ~ComparingTier() = default;
  // Of the slot's bytes, if a watched load has computed it and completed.
  virtual std::optional<gpu::Fingerprint> fingerprint(SlotId slot) const = 0;
  // Whether a frame of the device can be compared now.
  virtual bool can_compare(int device) const = 0;
};

// Optional: copies in one direction make way for the driver's page table updates, which share a
// copy engine with them (docs/decisions/0071). At first those are stores.
class YieldingTier {
 public:
  virtual ~YieldingTier() = default;
  // From now on copies in this direction come in pieces with pauses, the other's in one piece.
  virtual void make_way(int device, Direction direction) = 0;
};

// Optional, for tiers that move host memory: loads straight into frames, with Transfer::frame and a
// null `host`. The caller verifies the bytes: the tier does not.
class FrameLoadingTier {
 public:
  virtual ~FrameLoadingTier() = default;
  // Whether a load of the slot can go straight into a frame of the device now.
  virtual bool loads_into_frames(SlotId slot, int device) const = 0;
};

// Optional: transfers wait in queues of the tier, one for each node or device. Loads that somebody
// waits for pass those that are `ahead`.
class QueueingTier {
 public:
  virtual ~QueueingTier() = default;
  // The queue of the slot's transfers; below 2^24.
  virtual std::uint32_t queue(SlotId slot) const = 0;
  // Somebody waits now for a load that was submitted as `ahead`. No effect if it has ended.
  virtual void hurry(std::uint64_t transfer) = 0;
};

// Optional: slots in a GPU's memory that others than the tier read in place, e.g. a network card.
class PinningTier {
 public:
  virtual ~PinningTier() = default;
  // Makes memory readable to others, until the result is destroyed.
  using Register = std::function<Result<std::shared_ptr<void>>(std::span<std::byte> memory)>;
  // Registers the tier's memory, in the background, and all that it gets later; finish() undoes it.
  virtual void register_memory(Register registers) = 0;
  // The slot's bytes, to be read: they stay there, unchanged, until unpin(). nullopt: they cannot
  // be pinned now. Calls nest. REQUIRES: a store of the slot has completed. A pinned slot is
  // neither released nor stored to.
  virtual std::optional<std::span<std::byte>> pin(SlotId slot) = 0;
  virtual void unpin(SlotId slot) = 0;
};

// Optional: slots whose copy can be lost, or become unreadable, after its store.
class DegradableTier {
 public:
  virtual ~DegradableTier() = default;
  // True if the slot lost a copy that can be re-created now, or its copy is unreadable. A caller
  // with the bytes elsewhere stores them again with `if_changed`: only missing copies are written.
  virtual bool degraded(SlotId slot) const = 0;
};

// Optional: others grant the budget as it is needed.
class GrowingTier {
 public:
  virtual ~GrowingTier() = default;
  // So many bytes are needed now, in all. Does not wait: returns a ticket for was_answered(). What
  // is granted is for the most that was needed lately.
  virtual std::uint64_t need(std::uint64_t bytes) = 0;
  // Whether all who could grant what was needed then have answered: the budget grows no further for
  // it.
  virtual bool was_answered(std::uint64_t ticket) const = 0;
  // A number that has grown if places() may have changed since it was read last.
  virtual std::uint64_t changes() const = 0;
  // Tier::places() of the largest budget that it could get, as far as is known.
  virtual std::vector<std::uint64_t> obtainable_places() const = 0;
  // Who has what could not be granted, for people; "": unknown.
  virtual std::string shortage() const = 0;
};

}  // namespace vmem::tiers
