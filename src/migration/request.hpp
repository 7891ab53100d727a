// What threads ask of the mover. The mover advances a request until it returns a result. A request
// that a thread waits for lives on that thread's stack; one with `then` may own itself.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "migration/attempt.hpp"
#include "migration/growth.hpp"
#include "migration/region_kind.hpp"
#include "migration/streams.hpp"
#include "pagetable/region.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

struct Core;
struct MoverParts;

class Request {
 public:
  Request() = default;
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  bool done() const { return done_.load(std::memory_order_acquire); }
  const Status& result() const { return result_; }  // when done
  const Status& wait();                             // the caller's thread: blocks until done

  // The mover. Does the work that is possible now. Empty: not finished; otherwise the result.
  virtual std::optional<Status> advance(MoverParts& parts) = 0;
  // The mover. Its owner may destroy the request as soon as this returns.
  void finish(Status result);

  // For Mover::post. Called once, when the request is done, on the mover's thread, or on any after
  // the mover's end. It may destroy the request, and neither waits nor throws.
  std::move_only_function<void()> then;
  Request* posted_before = nullptr;  // the mover's: the next in its list of posted requests

 private:
  Status result_;
  std::atomic<bool> done_{false};
  // The mover notifies under the mutex, so the waiter cannot destroy the request before the mover
  // has left it.
  std::mutex mutex_;
  std::condition_variable ended_;
};

// Pages [first, first + count) of a region.
struct PageRun {
  pagetable::Region* region = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

Status ended_error();  // vmem has ended in this process

// For requests whose caller holds nothing: another thread may have freed the region since, and its
// record may have been reused. Errors: INVALID_POINTER.
Status check_live(const PageRun& run);

// How long a request waits for GPU work in progress. Progress extends the wait, but not for ever:
// the work may itself wait for something that the requesting thread does next.
class Patience {
 public:
  // Call in each step that still waits. True after `times` the acquire wait without progress, and
  // after 10 times that in any case.
  bool over(const Core& core, std::uint64_t times = 1);
  bool over_limit(const Core& core, std::uint64_t limit_us);
  void reset() { since_us_ = 0; }
  bool waiting() const { return since_us_ != 0; }

 private:
  std::uint64_t since_us_ = 0;
};

// How long a request waits for a page, or for room, that a disk or another node may never provide.
// Progress elsewhere does not extend the wait.
class Deadline {
 public:
  // Call in each step that still waits. True after MoverConfig::call_wait_us, or `most_us` if that
  // is less.
  bool over(const Core& core, std::uint64_t most_us = UINT64_MAX);
  void reset() { since_us_ = 0; }

 private:
  std::uint64_t since_us_ = 0;
};

// Makes runs usable. REQUIRES: the caller has published its holds on them.
struct AcquireRequest final : Request {
  struct Want {
    PageRun run;
    pagetable::Access access = pagetable::Access::read;
    std::uint32_t discard_first = 0, discard_count = 0;  // pages that need no fetch of old contents
    // For this, no page stays in place because that proved faster.
    bool needs_hbm = false;
    // Move pages served in place into HBM, unless all wants with this flag are too large for it.
    bool move_to_hbm = false;
  };
  std::span<const Want> wants;

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Status check_writable(const MoverParts& parts) const;
  std::optional<Status> serve_wants(MoverParts& parts);
  bool worth_frames(const MoverParts& parts) const;
  std::uint32_t own_holds(const PageRun& page) const;
  void recall_ahead(MoverParts& parts) const;
  std::size_t want_ = 0;
  std::uint32_t page_ = 0;
  std::uint32_t awaited_ = trace::kNoGranule;  // the page last waited for; its first granule
  std::optional<std::uint64_t> began_us_;
  Patience patience_;  // for a frame, or for the end of a page's uses
  Deadline below_;     // for a page below host memory
  bool counted_in_place_ = false;
  bool may_wait_ = true;    // false after a wait without GPU progress
  bool no_frames_ = false;  // no frame can be had: serve the rest in place
  bool worth_frames_ = false;
};

struct AllocateRequest final : Request {
  std::uint64_t bytes = 0;
  int device = 0;  // index
  RegionKind kind = RegionKind::declared;
  // For a read-only region; gives its size, too.
  std::shared_ptr<tiers::PageSource> source;
  pagetable::Region* region = nullptr;  // answer

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  std::optional<Status> begin(MoverParts& parts);
  Status add_region(MoverParts& parts, std::uint64_t backed, std::uint32_t shift);
  void undo(MoverParts& parts, std::uint64_t charged);
  Patience patience_;  // for memory that ending regions still hold
  Growth growth_;
  pagetable::RegionId id_;    // the region's
  std::uint32_t mapped_ = 0;  // pages mapped so far
};

// The next pages of a region of shared pages begin, and are committed. Errors: ADDRESS_SPACE (the
// region has not so many left), OUT_OF_MEMORY, INVALID_POINTER (it has ended).
struct ExtendRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;  // see FreeRequest
  std::uint32_t pages = 0;
  std::uint32_t first_page = 0;  // answer: the first of them

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Patience patience_;  // for memory that ending regions still hold
  Growth growth_;
  bool committed_ = false;
  std::uint32_t mapped_ = 0;  // the next page to map
};

// Commits pages of a region of shared pages again that hold no block, or no longer. Only the number
// counts. Without a block a page may stay where it is, but nobody has a right to that.
struct CommitRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;  // see FreeRequest
  std::uint32_t pages = 0;
  enum class What : std::uint8_t { commit, give_up } what = What::commit;

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Patience patience_;  // for memory that ending regions still hold
  Growth growth_;
};

struct FreeRequest final : Request {
  pagetable::Region* region = nullptr;
  // Of the region as the caller saw it; another region may have reused the record since.
  std::uint32_t first_granule = 0;
  bool joint = false;  // of a published region, by who closes it
  Stamp last;          // covers work queued before the free

  std::optional<Status> advance(MoverParts& parts) override;
};

struct PrefetchRequest final : Request {
  PageRun run;

  std::optional<Status> advance(MoverParts& parts) override;
};

struct AdviseRequest final : Request {
  PageRun run;
  vmem_advice advice = VMEM_ADVISE_NORMAL;

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  bool looked_ = false;
};

// Opens one page for vmem_read or vmem_write. The mover does not move it until it is closed.
struct OpenPageRequest final : Request {
  PageRun run;  // one page
  bool write = false;
  // A page that only other nodes have is not fetched, and a load that takes longer than a second
  // ends the request with TIMEOUT.
  bool for_other_node = false;
  // Answer: the page is not here, and was not opened.
  bool absent = false;
  bool coming = false;  // with absent: its bytes are on their way to here
  // Answer: one of these, or neither (reading only) for a page that was never written.
  std::byte* host = nullptr;
  CUdeviceptr device_window = 0;

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  // `queue`: where the page's load waits, if that is for another node.
  std::optional<Status> open(MoverParts& parts, std::optional<std::uint32_t>& queue);

  Deadline below_;  // for a page below host memory
  // The page's uses when the request arrived. The request does not wait for later ones, which only
  // slabs can have.
  std::optional<std::vector<Stamp>> uses_;
};

struct ClosePageRequest final : Request {
  PageRun run;

  std::optional<Status> advance(MoverParts& parts) override;
};

struct QueryRequest final : Request {
  PageRun run;
  vmem_pointer_info info{};  // answer: the byte counts

  std::optional<Status> advance(MoverParts& parts) override;
};

// The bytes that one device can commit: in total, and in addition to the current commitments.
struct CapacityRequest final : Request {
  int device = 0;                                 // index
  std::uint64_t free_bytes = 0, total_bytes = 0;  // answer

  std::optional<Status> advance(MoverParts& parts) override;
};

struct StatisticsRequest final : Request {
  vmem_statistics statistics{};  // answer: the mover's part
  // Answer: copies of other nodes' published pages in host memory.
  struct PublishedCopies {
    std::uint64_t bytes = 0, quota_bytes = 0;
    std::uint64_t dropped_pages = 0, dropped_bytes = 0;  // released for the quota
  } published;

  std::optional<Status> advance(MoverParts& parts) override;
};

// Finishes when nothing is in flight. Errors: TIMEOUT (only transfers of unresponsive disks or
// nodes remain).
struct QuiesceRequest final : Request {
  std::optional<Status> advance(MoverParts& parts) override;
};

// Unmaps every page that nobody holds. Finishes when no page is in use by GPU work. Errors: IN_USE
// (the work does not end).
struct HideRequest final : Request {
  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Patience patience_;
};

// From now on nobody can write to the region; what was queued before has ended. Errors: IN_USE (it
// is held, or the GPU's work does not end), TIMEOUT (a page is being read from a disk or a node
// that does not answer), INVALID_VALUE (its pages are not its own, or of a file); then it is as
// before.
struct FreezeRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;       // see FreeRequest
  std::vector<std::uint32_t> unwritten;  // answer: pages that were never written, in order

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Status check(const MoverParts& parts) const;
  // Null while it may still wait for the page.
  std::optional<Error> out_of_time(const MoverParts& parts, PageRef ref, Attempt waits_for);
  Patience patience_;
  Deadline below_;          // for all transfers that it waits for
  std::uint32_t page_ = 0;  // hidden so far
  bool began_ = false;
};

// Makes a frozen region writable again. REQUIRES: no other node has heard of it.
struct ThawRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;  // see FreeRequest

  std::optional<Status> advance(MoverParts& parts) override;
};

// From now on pages of a frozen region that the spill tier has lost are loaded from the source.
struct RescueRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;  // see FreeRequest
  std::shared_ptr<tiers::PageSource> source;

  std::optional<Status> advance(MoverParts& parts) override;
};

// The node may allocate in granules [first, first + count) of the joint address space from now on.
// Errors: those of AddressSpace::grant.
struct GrantRequest final : Request {
  std::uint32_t first = 0, count = 0;

  std::optional<Status> advance(MoverParts& parts) override;
};

// The node may allocate in granules [first, first + count) no longer, as far as it could. Regions
// that live there stay until they end.
struct RetireRequest final : Request {
  std::uint32_t first = 0, count = 0;

  std::optional<Status> advance(MoverParts& parts) override;
};

// Pages that are accessed in ways that vmem cannot track: they stay mapped where they are until
// their region dies.
struct KeepRequest final : Request {
  PageRun run;

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  Patience patience_;
  Deadline below_;  // for a page below host memory
  std::uint32_t page_ = 0;
  bool may_wait_ = true;
};

// Drained mode: everything stays accessible. Maps a whole new region: without evicting, or (`idle`:
// the GPU is idle and launches are held back) by evicting, after which evicted pages are
// accessible in host memory. Finishes when all transfers are complete.
struct SettleRequest final : Request {
  pagetable::Region* region = nullptr;
  bool idle = false;
  bool settled = false;  // answer: the whole region is accessible

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  bool place_region(MoverParts& parts);
  std::optional<Error> failed_;
  Patience patience_;
  Deadline below_;  // for a page below host memory
  std::uint32_t page_ = 0;
  bool may_wait_ = true;
};

// Lets another device use a region's mappings.
struct PeerAccessRequest final : Request {
  pagetable::Region* region = nullptr;
  int device = 0;  // index

  std::optional<Status> advance(MoverParts& parts) override;
};

// A thread's own call found the device lost. Fails with `error` if one of vmem's contexts is lost,
// too.
struct LossReport final : Request {
  explicit LossReport(Error found) : error(std::move(found)) {}
  const Error error;

  std::optional<Status> advance(MoverParts& parts) override;
};

// Ends all regions, for shutdown; finishes when their last uses complete. Errors: IN_USE (a hold is
// left; no region was ended).
struct EndAllRequest final : Request {
  bool only_check = false;  // whether it would begin

  std::optional<Status> advance(MoverParts& parts) override;

 private:
  bool started_ = false;
};

}  // namespace vmem::migration
