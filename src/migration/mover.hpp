// The mover: the one writer of the page table and the one caller of mapping functions. An actor: threads post requests and
// wait; step() does what can be done now and returns. In production a thread steps; tests step themselves, so that every
// interleaving can be scripted. No call in here waits for the GPU.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log_limit.hpp"
#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/journal.hpp"
#include "migration/place/commitments.hpp"
#include "migration/policy/policy.hpp"
#include "migration/request.hpp"
#include "migration/streams.hpp"
#include "migration/transfers.hpp"
#include "pagetable/address_space.hpp"
#include "pagetable/holds.hpp"
#include "tiers/frame_pool.hpp"
#include "tiers/tier.hpp"

namespace vmem::migration {

using pagetable::Page;
using pagetable::PageState;
using pagetable::Region;

struct MoverDevice {
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  std::uint64_t hbm_bytes = 0;  // budget for frames
  std::uint32_t peers = 0;      // bit i: device i can map this device's memory
  // Which of MoverConfig::lent this device can use, best first.
  std::vector<std::uint8_t> lenders;
};

// Memory of a GPU that pages of other devices may lie in.
struct LentMemory {
  tiers::Tier* tier = nullptr;
  tiers::InPlaceTier* in_place = nullptr;
  std::uint32_t reached_by = ~0u;  // bit i: device i can map it
  std::function<void(std::uint64_t)> set_budget;
  // Where it is of one of MoverConfig::devices: this one. It lends what its own allocations leave of its budget, `most_bytes` at most.
  std::optional<int> lender;
  std::uint64_t most_bytes = 0;
  // Another process lends it, and may want it back at any time: no allocation counts on it.
  bool revocable = false;
};

// Other processes borrow what a device's own allocations leave of its budget.
struct LentOut {
  int lender = 0;  // of MoverConfig::devices
  std::uint64_t most_bytes = 0;
  std::function<void(std::uint64_t)> set_limit;
  struct Held {
    std::uint64_t bytes = 0, overdue_bytes = 0;  // the latter may never come back
  };
  std::function<Held()> held;
};

struct MoverConfig {
  std::shared_ptr<const gpu::Driver> driver;
  pagetable::AddressSpace* space = nullptr;
  pagetable::ThreadRegistry* threads = nullptr;
  StreamTable* streams = nullptr;
  tiers::Tier* backing = nullptr;
  tiers::InPlaceTier* in_place = nullptr;  // null: the backing tier cannot be mapped
  std::vector<LentMemory> lent;            // where a page that leaves HBM goes before host memory
  std::vector<LentOut> lent_out;
  tiers::Tier* spill = nullptr;  // where pages go that the backing tier has no room for; null: nowhere
  tiers::Tier* files = nullptr;  // of the sources of read-only regions; null: there are none
  std::unique_ptr<Policy> policy;
  std::unique_ptr<Policy> spill_policy;  // whom to spill; of one device, the backing tier. With `spill`
  std::vector<MoverDevice> devices;
  std::optional<std::uint64_t> page_bytes;  // for all regions, if given
  std::uint64_t acquire_wait_us = 100'000;
  std::uint64_t slot_wait_us =
      10'000'000;  // without progress, for what is below host memory while all of that is in use; then it fails
  std::uint64_t call_wait_us =
      30'000'000;  // for a page, or for room, that a disk or a node does not give; then it fails
  // Pages acquired for reading only are mapped read-only, so that a stray write faults. A page then becomes writable only while
  // nothing uses it: changing the access of a mapping under a running kernel is fatal (error 700), whichever way it changes.
  bool protect = false;
  bool only_asked = false;  // nothing is moved but what is asked for: no fetching ahead, no promotion
  std::function<std::uint64_t()> now_us;
};

struct MoverCounters {
  std::uint64_t acquire_misses = 0, in_place_acquires = 0, acquire_waits = 0, acquire_wait_us = 0;
  std::uint64_t busy_us = 0;
  std::uint64_t migrated_in_bytes = 0, migrated_out_bytes = 0, dropped_bytes = 0, stray_writes = 0;
  std::uint64_t prefetched_bytes = 0, prefetched_used_bytes = 0;
  std::uint64_t peer_in_bytes = 0, peer_out_bytes = 0,
                peer_returned_bytes = 0;  // of lent memory; the first two are migrated, too
  std::uint64_t spilled_bytes = 0, recalled_bytes = 0, spills_dropped_bytes = 0, spill_failures = 0;
  std::uint64_t load_failures = 0;  // of loads from below host memory whose page stayed there
  std::uint64_t evictions = 0, eviction_cancels = 0, maps = 0, unmaps = 0;
  std::uint64_t allocated_bytes = 0, committed_bytes = 0, pages = 0;
  std::uint64_t file_mapped_bytes = 0, file_read_bytes = 0;
  std::uint64_t read_to_hbm_bytes = 0, read_to_hbm_failures = 0;  // the former are among recalled and file_read
};

class Mover {
 public:
  explicit Mover(MoverConfig config);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void start();  // a thread that steps until stop
  void stop();

  // Any thread: posts the request and waits for its result. The request lives on the caller's stack.
  Status call(Request& request);
  // Posts without waiting; the request must outlive its completion (tests).
  void post(Request& request);
  // Wakes the mover if it sleeps.
  void poke();
  std::uint64_t hbm_bytes(int device) const { return devices_[std::size_t(device)]->config.hbm_bytes; }
  // Any thread. What an undeclared region of `bytes` takes up, and a device's budget.
  std::uint64_t undeclared_bytes(int device, std::uint64_t bytes) const;
  const Journal& journal() const { return journal_; }
  // Whether a page had to leave for another so far: from then on somebody waits for uses to end.
  bool evicts() const { return evicts_.load(std::memory_order_relaxed); }
  // Whether launches are to log what they use. As long as all fits nobody asks for it: then a launch only says that there was one on
  // its stream (StreamRecord::note_untracked), and is taken to have used everything. Until then all that is mapped lies in HBM.
  // Sequentially consistent, as lives and deaths of regions are: a region that looks dead when tracking begins is not used untracked later.
  bool tracks() const { return tracks_.load(std::memory_order_seq_cst); }
  // While launches log nothing: the devices (as bits) on which one may reach all that there is as it lies, mapped in HBM, with nothing to
  // wait for. A launch that holds everything, and asks then, need not look at what it names.
  std::uint32_t all_at_hand() const { return all_at_hand_.load(std::memory_order_seq_cst); }
  std::uint64_t now_us() const { return config_.now_us(); }

  // The mover's thread, or a test's.
  // Work is left; somebody waits for the GPU; it is worth a look now and then; nothing to do until poked.
  enum class Next { again, soon, later, sleep };
  Next step();

 private:
  friend class Patience;
  friend class Deadline;
  friend struct AcquireRequest;
  friend struct AllocateRequest;
  friend struct FreeRequest;
  friend struct PrefetchRequest;
  friend struct AdviseRequest;
  friend struct OpenPageRequest;
  friend struct ClosePageRequest;
  friend struct QueryRequest;
  friend struct StatisticsRequest;
  friend struct CapacityRequest;
  friend struct QuiesceRequest;
  friend struct HideRequest;
  friend struct KeepRequest;
  friend struct SettleRequest;
  friend struct PeerAccessRequest;
  friend struct LossReport;
  friend struct EndAllRequest;
  friend struct MoverInspector;  // tests

  struct DeviceState {
    MoverDevice config;
    tiers::FramePool hbm;
    std::uint64_t loads_bytes = 0;     // in flight into its frames
    std::uint64_t stores_bytes = 0;    // in flight out of them
    std::uint64_t arriving_bytes = 0;  // of frames that are read into, and no page's yet
    std::uint64_t pinned_bytes = 0;    // by advice, and the pages of small allocations
    std::uint64_t committed_bytes = 0;
    std::deque<PageId> planned;          // the policy's prefetches that have not started yet
    std::uint64_t leaving_tried_us = 0;  // when giving up pages ahead was tried last
    bool leaving_waits = false;          // and some were in use
    DeviceState(const MoverDevice& device, tiers::FramePool::Config pool) : config(device), hbm(std::move(pool)) {}
  };
  struct PageRef {
    Region* region = nullptr;
    std::uint32_t index = 0;
    // For references kept over steps: the region may have ended, and its record serve another one.
    bool live() const {
      return region != nullptr && region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live &&
             index < region->page_count;
    }
    Page& page() const { return region->pages[index]; }
    PageId id() const { return region->page_id(index); }
    std::uint64_t bytes() const { return region->page_bytes(); }
    std::uint32_t begin() const { return region->granule_of(index); }
    std::uint32_t end() const { return begin() + (1u << region->page_shift); }
  };

  // mover.cpp: the loop
  void run();
  Next step_or_wait() noexcept;
  std::optional<Status> advance(Request& request);
  void take_posted();
  void refuse_posted();
  static Status ended_error();
  void finish(Request& request, Status result);
  void advance_requests();
  Status poll();
  void poll_failed(const Error& error);
  void finish_transfer(const tiers::Completion& completion);
  void found_changed(PageRef ref);
  void store_failed(PageRef ref, const Error& error);
  void settle_pending();
  void drain_uses();
  void start_tracking();
  void stamp_untracked(Region& region);
  void used_untracked(Region& region);
  void on_use(const pagetable::LoggedUse& use);
  void stamp(Region& region, Page& page, Stamp use);
  void stamp(Region& region, Stamp use);
  void lose_device(const Error& error);
  Next next_step() const;

  // serve.cpp: making pages usable
  enum class Served { usable, in_place, wait, wait_frame, wait_use };
  // How hard to try for a frame: whether to evict for it, whether to wait for the GPU's progress, whether to do so for a page that
  // is served in place already, and whether to serve it in place where there is none.
  struct Effort {
    bool evict;
    bool wait;
    bool leave_host;
    bool in_place = true;  // failing all that
  };
  Result<Served> serve(PageRef ref, Access access, bool discard, Effort effort, std::uint32_t own_holds);
  Result<Served> bring_in(PageRef ref, Access access, bool discard, Effort effort);
  Result<Served> leave_host(PageRef ref, Access access, Effort effort, std::uint32_t own_holds);
  Result<Served> map_in_place(PageRef ref, Access access, bool discard);
  Result<bool> upgrade(PageRef ref, std::uint32_t own_holds);
  Error still_read_error(PageRef ref) const;
  Error read_only_error(const Region& region) const;
  // The mapping allows what was asked for and no more: nothing can have been written that was not announced.
  // Small allocations share pages: the mapping cannot tell one that is read from a neighbour that is written.
  bool guarded(const Region& region) const { return region.read_only || (config_.protect && !region.shared); }
  Status map_kept_frame(PageRef ref, Access access, bool prefetch = false);
  Status load_frame(PageRef ref, std::uint32_t frame, Access access, bool discard, bool prefetch);
  Result<std::uint64_t> submit(PageRef ref, tiers::Direction direction, std::uint32_t frame, std::uint64_t after,
                               bool watch);
  Status map_at(PageRef ref, CUmemGenericAllocationHandle handle, Access access);
  Status unmap_at(PageRef ref);
  Status set_access(const Region& region, CUdeviceptr address, Access access);
  void expose(PageRef ref, pagetable::Mapped mapped, Access access, std::uint64_t wait, bool prefetch);
  std::uint32_t wait_for(PageRef ref, std::uint64_t transfer);
  static std::uint64_t store_from_frame(const pagetable::Page& page);
  CUevent event_of(std::uint64_t transfer) const;
  bool running(std::uint64_t transfer) const { return transfer != 0 && in_flight_.contains(transfer); }
  static constexpr std::uint32_t kLargestShift = 5;  // of pages whose size is chosen here: 64 MiB
  static bool usual_room(std::uint64_t in_flight_bytes, std::uint64_t page_bytes);
  bool room_in_flight(const tiers::Tier& tier, std::uint64_t in_flight_bytes, std::uint64_t page_bytes) const;
  static bool load_has_room(const DeviceState& device, std::uint64_t page_bytes) {
    return usual_room(device.loads_bytes, page_bytes);
  }
  bool recall_has_room(PageRef ref) { return room_in_flight(below_of(*ref.region), recalling_bytes_, ref.bytes()); }
  PrefetchQuery query_of(int index) const;
  CUdeviceptr address_of(PageRef ref) const { return config_.space->address_of(ref.begin()); }
  void note(PageRef ref, Happened what) {
    journal_.add({config_.now_us(), ref.begin(), ref.end() - ref.begin(), what});
  }

  // evict.cpp: taking pages away
  enum class Evicted { done, held, busy, leaving };  // leaving: its frame comes free if it is found unchanged
  struct Grab {
    std::optional<std::uint32_t> frame;
    bool busy = false;  // a frame will come free by GPU progress
  };
  // How far down the policy's list to go for a victim.
  enum class Search { first_choices, until_busy, past_busy };
  static Search search_for(PageRef ref, Search declared) {
    return ref.region->undeclared ? Search::past_busy : declared;
  }
  // Which free frames will do: any, since work on them is ordered after copies out of them, or those that no copy reads any more.
  enum class Frames { any, idle };
  enum class Victims { any, without_slot };  // without_slot: those that leave HBM without a new slot of host memory
  struct FrameWish {
    std::uint64_t page_bytes;
    Search search;
    Frames frames = Frames::any;
    Victims victims = Victims::any;
  };
  bool leaves_without_slot(PageRef ref);
  Result<Grab> grab_frame(DeviceState& device, const FrameWish& wish);
  Result<Grab> find_frame(DeviceState& device, const FrameWish& wish);
  Result<bool> evict_one_of(DeviceState& device, const FrameWish& wish, std::span<const PageId> candidates, Grab& grab);
  void eviction_failed(PageRef ref, const Error& error);
  Result<std::optional<std::uint32_t>> take_frame(DeviceState& device, std::uint64_t page_bytes,
                                                  Frames frames = Frames::any);
  static bool room_in_free_frames(const DeviceState& device, std::uint64_t page_bytes);
  Result<Evicted> evict(PageRef ref);
  Result<Evicted> hide(PageRef ref, std::uint32_t own_holds = 0);  // unmaps it, wherever its bytes are
  Evicted held(PageRef ref, std::uint32_t own_holds) const;
  Evicted withdraw_access(PageRef ref, std::uint32_t own_holds = 0);
  bool uses_complete(Region& region, Page& page);
  bool complete(Stamp stamp);
  Status give_up_frame(PageRef ref);
  void frame_given_up(PageRef ref, std::uint64_t store);
  bool comparable(PageRef ref) const;
  bool comparing(const Page& page) const;
  Status submit_compare(PageRef ref);
  void finish_compare(PageRef ref, const InFlight& transfer, const tiers::Completion& completion);
  void learn_below(PageRef ref);
  // What a page may take the slot of: what is read back ahead of its use leaves the slots of what else is wanted, or the two would chase
  // each other for as long as both are asked for. Lifting: a request waits for the slot, so pages may also go up into frames that are
  // free or come free without a slot. Eviction never lifts, which ends the recursion.
  enum class Displaces { unwanted, anything, advised, lifting };  // advised: kept on advice, too
  Result<bool> need_slot(PageRef ref, Displaces displaces = Displaces::anything);
  Result<bool> need_host_slot(PageRef ref, Displaces displaces = Displaces::anything);
  Result<std::optional<Place>> find_host_slot(PageRef ref, Displaces displaces);
  Result<std::optional<Place>> look_for_host_slot(PageRef ref, Displaces displaces);
  static void settle_in(PageRef ref, Place place);
  enum class Writable { slot, frame, none_yet };
  Result<Writable> place_for_writing(PageRef ref);
  struct GivenUp {
    std::uint64_t bytes = 0;
    bool busy = false;  // more can be given up when transfers end
  };
  enum class Copies { of_this_size, of_any_size, of_read_mostly_too };
  GivenUp give_up_slots(std::size_t near, std::uint64_t bytes, Copies which);
  static bool outlived(PageRef ref);
  void region_changed(Region& region);
  void forget_contents(PageRef ref);
  void keep_no_longer(PageRef ref);
  static Status check_room_for_pins(const DeviceState& device, std::uint64_t bytes);
  static bool still_retained(PageRef ref);
  void drop_standby(PageRef ref);
  void retain(PageRef ref);

  // ahead.cpp: prefetch, promotion
  void prefetch_ahead();
  void follow_plan(int index);
  void plan_more(int index);
  void give_up_ahead(int index);
  enum class Started { yes, no_frame, coming, failed };
  Started start_prefetch(PageRef ref);
  enum class Promoted { done, no_frame, busy, no };  // busy: worth another look; no: the next use asks again
  void promote();
  void queue_promotion(PageRef ref);
  Result<Promoted> promote_one(PageRef ref);

  // lend.cpp: memory of other GPUs
  struct Near {
    tiers::Tier* tier = nullptr;
    tiers::InPlaceTier* in_place = nullptr;
  };
  const Near& near_of(const Page& page) const { return near_[page.near]; }
  struct LentSlot {
    tiers::SlotGrant grant;
    bool comes = false;  // none now, but transfers hold slots that can be given up when they end
  };
  Result<LentSlot> allocate_lent(std::size_t near, std::uint64_t page_bytes);
  std::uint64_t left_to_lend(const DeviceState& device, std::uint64_t most_bytes) const;
  std::uint64_t lendable(const LentMemory& lent) const;
  std::uint64_t lent_for_certain(const LentMemory& lent) const;
  bool lent_comes_back() const;
  template <class Held, class SetLimit>
  void split_budget(DeviceState& device, std::uint64_t wanted, Held&& held, SetLimit&& set_limit);
  void balance_lending(DeviceState& device);
  void return_lent();
  void return_from(std::size_t near, std::uint64_t bytes);
  enum class Returned { done, moving, no };
  Result<Returned> return_page(PageRef ref);
  Status submit_return(PageRef ref, Place to);
  void finish_return(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion);
  void return_failed(PageRef ref, const Error& error);

  // spill.cpp: between host memory and what is below it
  template <class Tell>
  void tell_policies(Tell&& tell) {
    tell(*config_.policy);
    if (config_.spill_policy) tell(*config_.spill_policy);
  }
  // While a frame is looked for, for this page: what is done to get one may spill others, and not this one.
  class Serving {
   public:
    Serving(Mover& mover, PageRef ref) : mover_(mover), before_(std::exchange(mover.serving_, &ref.page())) {}
    ~Serving() { mover_.serving_ = before_; }
    Serving(const Serving&) = delete;
    Serving& operator=(const Serving&) = delete;

   private:
    Mover& mover_;
    const Page* before_;
  };
  // A load from below that failed, and whose page is still there.
  struct LoadFailure {
    Error error;
    std::uint64_t version = 0;  // of the page
    std::uint32_t tries = 0;
    std::uint64_t again_at_us = 0;
  };
  bool has_below() const { return config_.spill != nullptr || !sources_.empty(); }
  tiers::Tier& below_of(const Region& region) const { return region.read_only ? *config_.files : *config_.spill; }
  Result<bool> recall(PageRef ref, Displaces displaces = Displaces::lifting);
  bool recall_ahead(PageRef ref);
  bool recalling_to_host() const;
  bool spilling(const Page& page) const { return page.spilled != nullptr && running(page.spilled->transfer); }
  Status submit_spill(PageRef ref, tiers::Direction direction);
  Result<bool> make_slot_room(std::uint64_t bytes, Displaces displaces);
  struct Spilled {
    std::uint64_t bytes = 0;  // that slots were given up for
    bool busy = false;        // more will be: a transfer, or the tier below, is at it,
    bool in_use = false;      // or work uses them in place
  };
  Spilled spill_some(std::uint64_t bytes, bool any);
  Spilled spill_one(PageRef ref);
  bool slot_at_rest(PageRef ref) const;
  bool spillable(PageRef ref) const;
  void spill_ahead();
  Result<bool> need_spill_slot(PageRef ref);
  std::uint64_t give_up_spilled(std::uint64_t bytes);
  void finish_spill(PageRef ref, const InFlight& transfer, const tiers::Completion& completion);
  void spill_refused(PageRef ref, const Error& error);
  void spill_failed(PageRef ref, const Error& error);
  void spill_not_stored(PageRef ref, const Error& error);
  bool failing_for_short() const;
  bool may_find_room_later(const Error& error) const;
  Result<bool> load_due(PageRef ref);
  void load_from_below_failed(PageRef ref, const Error& error);
  void came_to_host_memory(PageRef ref);
  void left_host_memory(PageRef ref);
  void drop_slot(PageRef ref);
  void drop_spilled(PageRef ref);
  void room_came_below();
  void doubt_spilled(Page& page);

  // flow/room_in_host.cpp also: room in host memory by way of free frames
  enum class Lifted { yes, no, busy, no_frame };
  bool room_comes_by_lifting();
  bool lift_one();
  Lifted lift(PageRef ref);

  // arrive.cpp: from files straight into frames
  // Checked: by the GPU, now. Busy: a frame will come free by progress. Later: it cannot set out now.
  enum class Arrival { on_its_way, checked, busy, no_frame, later };
  bool arrives(PageRef ref);
  Result<Arrival> arrive(PageRef ref, bool evict, Search search);
  bool arrived(PageRef ref) const;
  void give_up_check(PageRef ref);
  Status submit_arrival(PageRef ref, std::uint32_t frame);
  Status check_arrival(PageRef ref, const InFlight& arrival);
  void finish_arrival(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion);
  void arrival_failed(PageRef ref, const Error& error);

  // failed_loads.cpp: loads that fail after their page was mapped
  struct Unread {
    std::string why;
    std::optional<Place> good;  // where the page's bytes are, if not in its slot or below
  };
  void load_failed(PageRef ref, const tiers::Completion& completion);
  void lose_page(PageRef ref, const Error& error);
  bool writes_unsaid(const Region& region) const;
  void keep_unread(PageRef ref, const Error& error, std::optional<Place> good);
  Result<bool> take_back_unread(PageRef ref, std::uint32_t own_holds);
  bool is_unread(PageRef ref) const { return !unread_.empty() && unread_.contains(ref.id()); }
  Error lost_error(PageRef ref, std::uint32_t own_holds);

  // unserved.cpp: disks and nodes that do not answer
  Error unserved_error(PageRef ref);
  bool stuck(const InFlight& transfer) const;
  bool only_stuck() const;
  void keep_awaited_frames();
  std::string stuck_place() const;
  std::string stuck_words() const;

  // files.cpp: read-only regions, and the slots that their pages pass through
  void read_from(Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first);
  std::uint64_t largest_file_page() const;
  std::uint64_t borrowed_bytes(bool waiting) const;
  bool room_to_borrow(std::uint64_t page_bytes);
  bool leaves_room_for_files(PageRef ref) const;
  GivenUp give_up_borrowed(std::uint64_t bytes, Displaces displaces);
  void give_up_borrowed(std::uint64_t bytes, bool wanted, GivenUp& given);
  void give_back_slot(PageRef ref);
  static void not_wanted(PageRef ref);

  // regions.cpp
  Memories memories() const;  // and what is committed of them
  PageSizes page_sizes() const;
  PageSizes page_sizes_with(std::uint64_t wanted) const;
  Status commit(DeviceState& device, std::uint64_t bytes, const PageSizes& pages);
  Status commit_error(const DeviceState& device, std::uint64_t bytes, const PageSizes& pages, const Memories& all,
                      const Shortfall& missing) const;
  Status commit_transit(DeviceState& device, std::uint64_t page_bytes, const tiers::PageSource& source);
  std::uint32_t file_page_shift(const DeviceState& device, std::uint64_t bytes) const;
  std::uint64_t most_page_bytes(std::uint64_t hbm_bytes) const;
  std::uint32_t page_shift_for(const DeviceState& device, std::uint64_t bytes, bool shared, bool undeclared) const;
  std::uint64_t hbm_in_all(const DeviceState& device) const;
  void expect_slots();
  Status end_region(Region& region, Stamp last);
  void finish_endings();
  bool finish_ending(Region& region, std::uint32_t& budget);
  bool has_transfers(const Region& region) const;
  static Status check_live(const PageRun& run);
  bool release_page(PageRef ref);
  Error full_error(const char* what, std::uint64_t bytes) const;
  DeviceState& device_of(const Region& region) { return *devices_[std::size_t(region.device)]; }

  // at_hand.cpp: what launches need not look at
  void publish(PageRef ref, pagetable::PageState next);
  void make_room_for_region();
  void region_begins(Region& region);
  void region_ends(const Region& region);
  void count_openings(std::uint32_t devices, std::uint32_t by);
  void not_at_hand(Region& region);
  void find_all_at_hand();
  bool worth_mapping(const Region& region) const;
  bool map_some(Region& region, std::uint32_t& mapped);

  MoverConfig config_;
  std::vector<std::unique_ptr<DeviceState>> devices_;
  std::vector<Near> near_;         // the host's memory, then what is lent
  std::size_t return_region_ = 0;  // where the search for pages to return goes on
  std::uint32_t return_page_ = 0;
  std::uint64_t returning_bytes_ = 0;  // in flight
  std::uint64_t stuck_returns_ = 0;    // said at every power of two
  bool return_waits_ = false;          // for the GPU's progress
  Transfers in_flight_;
  std::vector<tiers::Completion> completions_;
  std::deque<Request*> requests_;
  std::deque<PageRef> asked_ahead_;  // vmem_prefetch
  std::deque<PageRef> promotions_;   // used in place, worth a frame
  std::vector<std::deque<PageRef>>
      retained_;                  // in HBM with a slot that may be taken, by near memory; checked when popped
  std::deque<PageRef> spilled_;   // with a slot in the spill tier; checked when popped
  std::deque<PageRef> borrowed_;  // of read-only regions, with a slot of host memory
  std::unordered_map<const Region*, std::shared_ptr<tiers::PageSource>> sources_;
  std::map<PageId, std::string> losses_;                    // of live regions, why
  std::map<PageId, Unread> unread_;                         // pages of live regions whose mapping has other bytes
  std::map<PageId, LoadFailure> load_failures_;             // of pages of live regions
  std::uint64_t spilling_bytes_ = 0, recalling_bytes_ = 0;  // in flight
  bool slots_in_use_ = false;  // a slot was wanted, and only the end of work that uses pages in place can give one
  bool advancing_requests_ = false;
  std::uint64_t room_awaited_bytes_ = 0;   // the largest page that a request waits for a slot of host memory for
  const Page* serving_ = nullptr;          // see Serving
  std::uint64_t spill_full_until_us_ = 0;  // no page is sent there: it refused one, or failed to store it
  std::uint64_t spill_away_until_us_ = 0;  // whoever may have room below did not answer just now
  struct {
    std::uint32_t in_a_row = 0;
    std::uint64_t since_us = 0;
  } spill_failing_;               // stores that failed since one succeeded
  std::string spill_error_;       // the last failure's
  std::vector<PageRef> pending_;  // exposed with a transfer to wait for
  std::vector<Region*> live_;
  std::vector<Region*> ending_;
  std::optional<Error> lost_;
  MoverCounters counters_;
  Journal journal_;
  struct PageCounts {
    std::uint64_t declared = 0, undeclared = 0;
    std::uint64_t& of(const Region& region) { return region.undeclared ? undeclared : declared; }
  };
  std::unordered_map<std::uint64_t, PageCounts> page_counts_;  // page size → live pages
  std::uint64_t last_progress_us_ = 0;
  std::uint32_t poll_failures_ = 0;  // in a row
  LogLimit out_of_memory_;           // steps that lacked memory
  // Logged at every power of two.
  std::uint64_t evict_failures_ = 0, prefetch_failures_ = 0, cover_failures_ = 0, unmap_failures_ = 0;
  bool worked_ = false;                        // this step changed something
  bool plan_waits_ = false;                    // what is planned, to come or to leave, waits for the GPU's progress
  std::atomic<bool> evicts_{false};            // see evicts
  std::atomic<bool> tracks_{false};            // see tracks
  std::atomic<std::uint32_t> all_at_hand_{0};  // see all_at_hand
  std::vector<Region*> away_;                  // undeclared ones of which something was not at hand
  std::uint32_t declared_regions_ = 0;         // live ones: what is not acquired is not mapped
  std::array<std::uint32_t, 32> openings_{};   // live regions that each device may access
  std::vector<Stamp> untracked_;               // uses of anything, one for each stream
  bool untracked_before_ = false;              // there was one

  // Posting and sleeping.
  std::atomic<Request*> posted_{nullptr};
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> poked_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> ended_{false};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace vmem::migration
