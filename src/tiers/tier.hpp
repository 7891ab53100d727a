// The seam between the mover and the places a page's copies can be. Calls are batched and never wait: a transfer is
// submitted, and its outcome is collected by poll. A tier may run transfers in GPU stream order (host memory, a peer's HBM: an event
// tells consumers when the bytes are there) or beside it (disks, other nodes: only poll tells).
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "gpu/kernels/fingerprint.hpp"
#include "pagetable/types.hpp"

namespace vmem::tiers {

using SlotId = std::uint32_t;  // a place for one page's bytes in a tier

enum class Direction : std::uint8_t { load, store };  // tier → HBM frame, HBM frame → tier

struct Transfer {
  pagetable::PageKey page;
  std::uint64_t version = 0;
  SlotId slot = 0;
  // Tiers that move device memory: window address of the HBM frame, or of what else the device's copies reach.
  CUdeviceptr frame = 0;
  std::byte* host =
      nullptr;  // tiers that move host memory: the page's bytes in a slot of pinned host memory; or null, see `reaches`
  std::uint64_t bytes = 0;
  int device = 0;
  Direction direction = Direction::load;
  std::array<CUevent, 2> after{};  // starts when these events have completed; null entries are none
  // Pages of one kind hold alike data, as those of a region do: what is learned of one, such as how it compresses, is believed of the next.
  std::uint32_t kind = 0;
  std::uint64_t deadline_us = 0;  // on the mover's clock; later, the outcome is `failed` with TIMEOUT. 0: none
  // A load: the page will be used without saying so when it is written, and stored `if_changed`.
  bool watch = false;
  // A store: the slot has the page's bytes unless somebody wrote to the frame since its watched load; only then they are
  // copied. A tier that cannot tell, in general or of this slot, copies them, and sets this to false.
  bool if_changed = false;
  // A store, of a tier that says can_compare: nothing is copied and no slot needed; the outcome says whether the frame's fingerprint is
  // another one.
  std::optional<gpu::Fingerprint> compare_with;
  // Answered by submit.
  std::uint64_t id = 0;    // 0: not submitted
  CUevent done = nullptr;  // stream-ordered tiers: completes with the transfer; valid until poll reported it
};

// Different for all transfers of a process.
std::uint64_t next_transfer_id();

enum class Outcome : std::uint8_t { done, failed, lost };

struct Completion {
  std::uint64_t id = 0;
  Outcome outcome = Outcome::done;
  Error error;  // for failed and lost
  bool changed =
      false;  // of a store `if_changed`: the bytes were found to differ, and were copied; of one `compare_with`: they differ
};

struct TierInfo {
  std::string_view name;         // "host", "peer 1", "nvme"
  bool stream_ordered = false;   // Transfer::done is given
  bool addressable = false;      // the GPU can load and store slots in place: also an InPlaceTier
  std::uint32_t busy_pages = 4;  // under way each way, however large they are: fewer leave it idle at times
};

struct TierUsage {
  std::uint64_t budget_bytes = 0;
  std::uint64_t used_bytes = 0;   // slots allocated
  std::uint64_t ready_bytes = 0;  // existing slots that are free: allocate will not answer `later` for these
  std::uint64_t held_bytes = 0;   // of memory: these, those in use, and those being made
};

enum class Grant : std::uint8_t {
  granted,
  later,
  full
};  // later: being made in the background; full: the budget is used
struct SlotGrant {
  Grant grant = Grant::full;
  SlotId slot = 0;
};

class Tier {
 public:
  virtual ~Tier() = default;
  virtual const TierInfo& info() const noexcept = 0;
  virtual TierUsage usage() const = 0;
  // What the budget consists of, in bytes. A page lies wholly in one place: free bytes of two
  // places do not add up to room.
  virtual std::vector<std::uint64_t> places() const { return {usage().budget_bytes}; }

  // Slots. `expect` says how many slots of a size will be wanted in all, so that they can be made ahead.
  virtual void expect(std::uint64_t page_bytes, std::uint64_t count) = 0;
  // Errors: TIMEOUT, naming who does not answer now and may have room later; others, why no room
  // can be made.
  virtual Result<SlotGrant> allocate(std::uint64_t page_bytes) = 0;
  virtual void release(SlotId slot) = 0;  // transfers on it have completed
  // Whether the slot still has all the copies that it could have now. If not, whoever has the bytes elsewhere stores them anew
  // (`if_changed`: only what is missing is copied). Other nodes can take copies with them; other tiers keep what they have.
  virtual bool kept(SlotId) const { return true; }

  // Of the slot's bytes, where it is known: what a watched load, now complete, has learned. And whether a frame can be compared with one
  // now.
  virtual std::optional<gpu::Fingerprint> fingerprint(SlotId) const { return std::nullopt; }
  virtual bool can_compare(int device) const {
    (void)device;
    return false;
  }

  // Of tiers that move host memory: whether a load can go straight into a frame of the device. Then Transfer::frame is given and `host`
  // null, and nobody has looked at the bytes when it is done: whoever asked for them does.
  virtual bool reaches(SlotId slot, int device) const {
    (void)slot, (void)device;
    return false;
  }

  // Where a slot is, for people: the disk, the node or the file.
  virtual std::string where(SlotId) const { return std::string(info().name); }

  // Submits transfers in order; on failure, those with id 0 were not submitted.
  virtual Status submit(std::span<Transfer> transfers) = 0;
  // Appends the outcomes since the last call.
  virtual Status poll(std::vector<Completion>& completions) = 0;
  // At the end, the only call that waits: until no transfer touches a frame any more, because it is complete or its device lost.
  virtual void finish() noexcept = 0;
  // True if finish gave up on transfers that do not end: the system may touch their memory at any time, so it, and the tier
  // itself, have to outlive the process.
  virtual bool quarantined() const noexcept { return false; }
};

// An optional ability: slots in memory that the GPU can load and store.
class InPlaceTier {
 public:
  virtual ~InPlaceTier() = default;
  virtual CUmemGenericAllocationHandle handle(SlotId slot) const = 0;
  // For this process to load and store; null where it cannot (a peer's HBM).
  virtual std::byte* host_address(SlotId slot, pagetable::Access access) const = 0;
  // For copies by the devices that reach the tier.
  virtual CUdeviceptr device_address(SlotId slot, pagetable::Access access) const = 0;
};

}  // namespace vmem::tiers
