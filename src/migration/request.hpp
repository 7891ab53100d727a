// What threads ask of the mover. A request is advanced until it says it is finished; it lives on the stack of the thread that waits
// for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "migration/streams.hpp"
#include "pagetable/region.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

class Mover;

class Request {
 public:
  Request() = default;
  virtual ~Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  bool done() const { return done_.load(std::memory_order_acquire); }
  const Status& result() const { return result_; }  // when done

 protected:
  // The mover: does what can be done now. Nothing: not finished; otherwise the result.
  virtual std::optional<Status> advance(Mover& mover) = 0;

 private:
  friend class Mover;
  Request* next_ = nullptr;
  Status result_;
  std::atomic<bool> done_{false};
  // The mover notifies under the mutex, so the waiter cannot destroy the request before the mover has left it.
  std::mutex mutex_;
  std::condition_variable ended_;
};

// Pages [first, first + count) of a region.
struct PageRun {
  pagetable::Region* region = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// How long a request waits for what GPU work in progress will give: while there is progress, and not for ever, because the work
// may itself wait for something that the requesting thread does next.
class Patience {
 public:
  // Still waiting, in this step. True: for long enough, `times` as long as an acquire waits.
  bool over(const Mover& mover, std::uint64_t times = 1);
  bool over_limit(const Mover& mover, std::uint64_t limit_us);
  void reset() { since_us_ = 0; }
  bool waiting() const { return since_us_ != 0; }

 private:
  std::uint64_t since_us_ = 0;
};

// How long a request waits for a page, or for room, that a disk or another node may never give: no progress elsewhere makes
// it longer.
class Deadline {
 public:
  // Still waiting, in this step. True: for as long as a call may.
  bool over(const Mover& mover);
  void reset() { since_us_ = 0; }

 private:
  std::uint64_t since_us_ = 0;
};

// Makes runs usable. The caller has published its holds on them.
struct AcquireRequest final : Request {
  struct Want {
    PageRun run;
    pagetable::Access access = pagetable::Access::read;
    std::uint32_t discard_first = 0, discard_count = 0;  // pages whose old contents need not be fetched
    bool leave_host = false;  // pages served in place: into HBM, unless all such wants together are too much for it
  };
  std::span<const Want> wants;

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  Status check_writable(const Mover& mover) const;
  std::optional<Status> serve_wants(Mover& mover);
  bool worth_frames(const Mover& mover) const;
  std::uint32_t own_holds(const PageRun& page) const;
  void recall_ahead(Mover& mover) const;
  std::size_t want_ = 0;
  std::uint32_t page_ = 0;
  std::optional<std::uint64_t> began_us_;
  Patience patience_;  // for a frame or a page's users
  Deadline below_;     // for what is below host memory
  bool counted_in_place_ = false;
  bool may_wait_ = true;    // until the GPU makes no progress
  bool no_frames_ = false;  // all that could be had are held: what is left goes in place
  bool worth_frames_ = false;
};

struct AllocateRequest final : Request {
  std::uint64_t bytes = 0;
  int device = 0;           // index
  bool shared = false;      // slabs for small allocations
  bool undeclared = false;  // see pagetable::Region
  // Of a read-only region; it gives the size, too.
  std::shared_ptr<tiers::PageSource> source;
  pagetable::Region* region = nullptr;  // answer

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  std::optional<Status> begin(Mover& mover);
  Status add_region(Mover& mover, std::uint64_t backed, std::uint32_t shift);
  void undo(Mover& mover, std::uint64_t charged);
  std::optional<Status> wait_or(Mover& mover, Error error);
  Patience patience_;         // for what ending regions still hold
  pagetable::RegionId id_;    // the region's
  std::uint32_t mapped_ = 0;  // of its pages
};

struct FreeRequest final : Request {
  pagetable::Region* region = nullptr;
  std::uint32_t first_granule = 0;  // where the caller saw it: by now another region may be there
  Stamp last;                       // work queued before the free

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

struct PrefetchRequest final : Request {
  PageRun run;

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

struct AdviseRequest final : Request {
  PageRun run;
  vmem_advice advice = VMEM_ADVISE_NORMAL;

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  bool looked_ = false;
};

// Opens one page for vmem_read or vmem_write: until it is closed, the mover leaves it where it is.
struct OpenPageRequest final : Request {
  PageRun run;  // one page
  bool write = false;
  // Answer: one of these, or neither for a page that was never written (reading only).
  std::byte* host = nullptr;
  CUdeviceptr device_window = 0;

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  Deadline below_;  // for what is below host memory
  // The page's uses when the request came; later ones of a page of small allocations are of no concern to it.
  std::optional<std::vector<Stamp>> uses_;
};

struct ClosePageRequest final : Request {
  PageRun run;

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

struct QueryRequest final : Request {
  pagetable::Region* region = nullptr;
  vmem_pointer_info info{};  // answer: the byte counts

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

// What can be committed on one device: in all, and beside what is.
struct CapacityRequest final : Request {
  int device = 0;                                 // index
  std::uint64_t free_bytes = 0, total_bytes = 0;  // answer

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

struct StatisticsRequest final : Request {
  vmem_statistics statistics{};  // answer: what the mover knows

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

// Finished when nothing is under way. Errors: TIMEOUT (only what a disk or a node does not end).
struct QuiesceRequest final : Request {
 protected:
  std::optional<Status> advance(Mover& mover) override;
};

// Unmaps all that nobody holds. Finished when no page is left that work under way still uses. Errors: IN_USE (it does not end).
struct HideRequest final : Request {
 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  Patience patience_;
};

// Pages that are reached in ways that nobody sees: from now on they stay mapped where they are, until their region dies.
struct KeepRequest final : Request {
  PageRun run;

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  Patience patience_;
  std::uint32_t page_ = 0;
  bool may_wait_ = true;
};

// Drained mode: everything stays accessible. Maps all of a new region: without taking anything from others, or, once the GPU is idle and
// launches are held back (`idle`), by evicting, after which what was evicted is accessible in host memory. Done when all bytes are there.
struct SettleRequest final : Request {
  pagetable::Region* region = nullptr;
  bool idle = false;
  bool settled = false;  // answer: all of it is accessible

 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  bool place_region(Mover& mover);
  std::optional<Error> failed_;
  Patience patience_;
  std::uint32_t page_ = 0;
  bool may_wait_ = true;
};

// Lets a further device use a region's mappings.
struct PeerAccessRequest final : Request {
  pagetable::Region* region = nullptr;
  int device = 0;  // index

 protected:
  std::optional<Status> advance(Mover& mover) override;
};

// A thread's own call found the device lost. Whether it is for everybody, the contexts in use tell.
struct LossReport final : Request {
  explicit LossReport(Error found) : error(std::move(found)) {}
  const Error error;

 protected:
  std::optional<Status> advance(Mover& mover) override;  // fails with `error` if it is
};

// Ends all regions, for shutdown; finished when their last uses are. Errors: IN_USE (something is held; nothing was ended).
struct EndAllRequest final : Request {
 protected:
  std::optional<Status> advance(Mover& mover) override;

 private:
  bool started_ = false;
};

}  // namespace vmem::migration
