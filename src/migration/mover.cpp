#include "migration/mover.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "gpu/memory_location.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::LoggedUse;
using pagetable::Mapped;

namespace {

// While work is in flight the mover looks again this often: well below the time of one page's copy.
constexpr auto kPollInterval = std::chrono::microseconds(20);
// What nobody waits for is looked at this often.
constexpr auto kLookInterval = std::chrono::milliseconds(1);
// So many failed queries in a row, about 20 ms of them, and the driver is taken to be gone.
constexpr std::uint32_t kPollFailuresMax = 1000;
// A page of an undeclared region that was found written is taken to be written again, and copied out without a look: once, then
// three times, at last so often.
constexpr std::uint8_t kWritesBelieved = 15;

tiers::FramePool::Config hbm_pool(const MoverConfig& config, const MoverDevice& device) {
  tiers::FramePool::Config pool;
  pool.driver = config.driver;
  pool.location = gpu::on_device(device.ordinal);
  pool.accessors = {pool.location};
  pool.budget_bytes = pool.largest_budget_bytes = device.hbm_bytes;
  pool.name = "HBM";
  return pool;
}

}  // namespace

Mover::Mover(MoverConfig config) : config_(std::move(config)), tracks_(config_.only_asked || config_.protect) {
  for (const MoverDevice& device : config_.devices) {
    devices_.push_back(std::make_unique<DeviceState>(device, hbm_pool(config_, device)));
  }
  near_.push_back({config_.backing, config_.in_place});
  for (const LentMemory& lent : config_.lent) near_.push_back({lent.tier, lent.in_place});
  retained_.resize(near_.size());
  for (auto& device : devices_) balance_lending(*device);
}

Mover::~Mover() {
  stop();
  // After a loss transfers may be under way, and the frames that they touch end here.
  for (const Near& near : near_) near.tier->finish();
  if (config_.spill != nullptr) config_.spill->finish();
  if (config_.files != nullptr) config_.files->finish();
  const bool quarantined = (config_.spill != nullptr && config_.spill->quarantined()) ||
                           (config_.files != nullptr && config_.files->quarantined());
  if (quarantined) keep_awaited_frames();
}

// What is read straight into them may come at any time.
void Mover::keep_awaited_frames() {
  for (auto& device : devices_) {
    if (device->arriving_bytes != 0) (void)device.release();
  }
}

void Mover::start() {
  thread_ = std::thread([this] { run(); });
}

void Mover::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  poke();
  thread_.join();
  ended_.store(true, std::memory_order_seq_cst);
  refuse_posted();
  for (Request* request : requests_) finish(*request, ended_error());
  requests_.clear();
}

Status Mover::ended_error() { return fail(VMEM_ERROR_NOT_INITIALIZED, "vmem has ended in this process"); }

// Whoever finds a request in the list after the mover's end answers it.
void Mover::refuse_posted() {
  for (Request* request = posted_.exchange(nullptr, std::memory_order_seq_cst); request != nullptr;) {
    Request* const next = request->next_;  // its owner may end it at once
    finish(*request, ended_error());
    request = next;
  }
}

Status Mover::call(Request& request) {
  post(request);
  if (ended_.load(std::memory_order_seq_cst)) refuse_posted();
  std::unique_lock lock(request.mutex_);
  request.ended_.wait(lock, [&] { return request.done(); });
  return request.result_;
}

void Mover::post(Request& request) {
  request.next_ = posted_.load(std::memory_order_relaxed);
  while (!posted_.compare_exchange_weak(request.next_, &request, std::memory_order_seq_cst)) {
  }
  poke();
}

void Mover::poke() {
  poked_.store(true, std::memory_order_seq_cst);
  if (!sleeping_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(sleep_mutex_);
  wake_.notify_one();
}

void Mover::run() {
  ::prctl(PR_SET_NAME, "vmem-mover");
  // The default slack of 50 µs would double the poll interval.
  ::prctl(PR_SET_TIMERSLACK, 1'000UL);
  const auto& driver = *config_.driver;
  (void)driver->cuCtxSetCurrent(config_.devices.front().context);
  // A capture in another thread must not be invalidated by our queries.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  MemoryReserve reserve;
  for (;;) {
    poked_.store(false, std::memory_order_seq_cst);  // before the look at what may have been poked for
    if (stopping_.load(std::memory_order_seq_cst)) return;
    (void)reserve.refill();
    const std::uint64_t began_us = config_.now_us();
    const Next next = step_or_wait();
    counters_.busy_us += config_.now_us() - began_us;
    if (next == Next::again) continue;
    std::unique_lock lock(sleep_mutex_);
    sleeping_.store(true, std::memory_order_seq_cst);
    const auto awake = [&] { return poked_.load(std::memory_order_seq_cst); };
    if (next == Next::sleep) {
      wake_.wait(lock, awake);
    } else if (next == Next::soon) {
      wake_.wait_for(lock, kPollInterval, awake);
    } else {
      wake_.wait_for(lock, kLookInterval, awake);
    }
    sleeping_.store(false, std::memory_order_seq_cst);
  }
}

// What no request asked for is tried again when memory may have come.
Mover::Next Mover::step_or_wait() noexcept {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    if (out_of_memory_.next().logged)
      log::write_plain("the process has no memory for vmem's bookkeeping; what was to be done ahead is put off");
    return Next::later;
  }
}

Mover::Next Mover::step() {
  worked_ = false;
  take_posted();
  if (!lost_) {
    if (auto polled = poll(); !polled) {
      poll_failed(polled.error());
    } else {
      poll_failures_ = 0;
    }
  }
  drain_uses();
  advance_requests();
  if (!lost_) {
    finish_endings();
    return_lent();
    if (config_.only_asked) {
      asked_ahead_.clear();
    } else {
      prefetch_ahead();
      promote();
    }
    if (config_.spill != nullptr) spill_ahead();
  }
  find_all_at_hand();
  return next_step();
}

Mover::Next Mover::next_step() const {
  if (worked_ || posted_.load(std::memory_order_acquire) != nullptr) return Next::again;
  // A device lost late in a step has requests to answer.
  if (lost_) return requests_.empty() ? Next::sleep : Next::again;
  const bool waiting =
      !requests_.empty() || !in_flight_.empty() || !ending_.empty() || !asked_ahead_.empty() || plan_waits_;
  if (waiting) return Next::soon;
  return promotions_.empty() && !return_waits_ ? Next::sleep : Next::later;
}

void Mover::take_posted() {
  Request* newest = posted_.exchange(nullptr, std::memory_order_acquire);
  const std::size_t before = requests_.size();
  for (; newest != nullptr; newest = newest->next_) {
    requests_.insert(requests_.begin() + std::ptrdiff_t(before), newest);  // eldest first
  }
}

void Mover::finish(Request& request, Status result) {
  const std::lock_guard lock(request.mutex_);
  request.result_ = std::move(result);
  request.done_.store(true, std::memory_order_release);
  request.ended_.notify_all();
}

void Mover::advance_requests() {
  std::deque<Request*> waiting;
  std::swap(waiting, requests_);
  room_awaited_bytes_ = 0;
  for (Request* request : waiting) {
    std::optional<Status> result;
    if (lost_) {
      result = std::unexpected(*lost_);
    } else {
      advancing_requests_ = true;
      result = advance(*request);
      advancing_requests_ = false;
    }
    if (!result) {
      requests_.push_back(request);
      continue;
    }
    worked_ = true;
    if (!*result && result->error().status == VMEM_ERROR_DEVICE_LOST) lose_device(result->error());
    finish(*request, std::move(*result));
  }
}

// The mover's thread goes on whatever a request lacks.
std::optional<Status> Mover::advance(Request& request) {
  try {
    return request.advance(*this);
  } catch (const std::bad_alloc&) {
    return Status(fail(VMEM_ERROR_OUT_OF_MEMORY, "no host memory", ENOMEM));  // so short that it needs none
  }
}

void Mover::lose_device(const Error& error) {
  if (lost_) return;
  lost_ = error;
  lost_->status = VMEM_ERROR_DEVICE_LOST;
  VMEM_LOG_ERROR("the GPU context is lost, vmem stops here: {}", error.message);
}

Status Mover::poll() {
  const bool watching = !requests_.empty() || !ending_.empty() || !in_flight_.empty() || !promotions_.empty() ||
                        plan_waits_ || return_waits_ || config_.streams->backlog();
  if (!watching) return {};
  const auto streams_polled = config_.streams->poll();
  completions_.clear();
  Status tiers_polled;
  for (const Near& near : near_) {
    if (tiers_polled) tiers_polled = near.tier->poll(completions_);
  }
  if (config_.spill != nullptr && tiers_polled) tiers_polled = config_.spill->poll(completions_);
  if (!sources_.empty() && tiers_polled) tiers_polled = config_.files->poll(completions_);
  // What was reported before a failure will not be reported again.
  for (const auto& completion : completions_) finish_transfer(completion);
  if (!completions_.empty()) settle_pending();
  if ((streams_polled && *streams_polled) || !completions_.empty()) {
    last_progress_us_ = config_.now_us();
    worked_ = true;
  }
  if (!streams_polled) return std::unexpected(streams_polled.error());
  return tiers_polled;
}

// A query that fails once may work the next time; what it asks for is still wanted.
void Mover::poll_failed(const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST || ++poll_failures_ >= kPollFailuresMax) lose_device(error);
}

void Mover::finish_transfer(const tiers::Completion& completion) {
  const auto found = in_flight_.find(completion.id);
  if (found == in_flight_.end()) return;
  const InFlight transfer = found->second;
  in_flight_.erase(found);
  const PageRef ref{transfer.region, transfer.page};
  Page& page = ref.page();
  if (transfer.kind == InFlight::Kind::spill) return finish_spill(ref, transfer, completion);
  if (transfer.kind == InFlight::Kind::arrival || transfer.kind == InFlight::Kind::arrival_check)
    return finish_arrival(ref, completion.id, transfer, completion);
  if (transfer.kind == InFlight::Kind::returned) return finish_return(ref, completion.id, transfer, completion);
  if (transfer.kind == InFlight::Kind::compare) return finish_compare(ref, transfer, completion);
  const bool load = transfer.direction == tiers::Direction::load;
  DeviceState& device = device_of(*ref.region);
  (load ? device.loads_bytes : device.stores_bytes) -= transfer.bytes;
  const bool latest_store = page.store == completion.id;
  if (latest_store) page.store = 0;
  if (transfer.if_changed)
    (completion.changed ? counters_.migrated_out_bytes : counters_.dropped_bytes) += transfer.bytes;
  if (completion.changed && transfer.from.near != 0) counters_.peer_out_bytes += transfer.bytes;
  if (completion.changed) {
    found_changed(ref);
    doubt_spilled(page);
  }
  if (transfer.if_changed && !completion.changed) page.writes_in_a_row = 0;
  if (load && completion.outcome == tiers::Outcome::done) learn_below(ref);
  if (load) give_back_slot(ref);
  if (completion.outcome == tiers::Outcome::done) return;
  if (ref.region->state.load(std::memory_order_relaxed) != pagetable::RegionState::live) return;
  if (load && page.wait == completion.id) load_failed(ref, completion);
  if (latest_store && page.version != 0 && page.slot_current()) store_failed(ref, completion.error);
}

void Mover::found_changed(PageRef ref) {
  if (ref.region->undeclared || ref.region->launched) {
    Page& page = ref.page();
    page.writes_in_a_row = std::uint8_t(std::min<unsigned>(2u * page.writes_in_a_row + 1, kWritesBelieved));
    page.writes_believed = page.writes_in_a_row;
    return;
  }
  if (!std::has_single_bit(++counters_.stray_writes)) return;
  VMEM_LOG_WARN(
      "the page at {:#x} ({}) was written by work that had acquired it for reading; what it wrote was kept ({} such "
      "pages). Name "
      "the write in the acquire, or find it with the option protect",
      address_of(ref), format_bytes(ref.bytes()), counters_.stray_writes);
}

// The copy is no copy. While the frame has the bytes it becomes the page's again, to be stored another time.
void Mover::store_failed(PageRef ref, const Error& error) {
  Page& page = ref.page();
  if (page.frame == kNoFrame) return lose_page(ref, error);
  VMEM_LOG_WARN("the copy of the page at {:#x} failed, it stays in HBM: {}", address_of(ref), error.message);
  page.slot_version = 0;
  if (!page.standby) return;
  device_of(*ref.region).hbm.retake(page.frame);
  page.standby = false;
  config_.policy->page_arrived(ref.id(), false);
}

void Mover::settle_pending() {
  std::erase_if(pending_, [&](PageRef ref) {
    Page& page = ref.page();
    if (running(page.wait)) return false;
    page.wait = 0;
    const PageState state(page.state.load(std::memory_order_relaxed));
    if (state.has(PageState::kPending)) publish(ref, state.clear(PageState::kPending));
    return true;
  });
}

void Mover::drain_uses() {
  config_.threads->drain([this](const pagetable::LoggedUse& use) { on_use(use); });
  bool fresh = false;
  config_.streams->take_untracked([&](Stamp use) {
    std::erase_if(untracked_, [&](Stamp known) { return known.stream() == use.stream(); });
    untracked_.push_back(use);
    fresh = untracked_before_ = true;
  });
  // After tracking began: from a launch that could not know yet.
  if (fresh && tracks()) std::ranges::for_each(live_, [this](Region* region) { used_untracked(*region); });
}

// Before the first page leaves: what launches and frees did not log is made up for. One that is under way holds what it uses until this shows.
void Mover::start_tracking() {
  if (tracks()) return;
  drain_uses();
  all_at_hand_.store(0, std::memory_order_seq_cst);
  tracks_.store(true, std::memory_order_seq_cst);
  for (Region* region : live_) {
    if (untracked_before_) used_untracked(*region);
    if (region->undeclared) region_changed(*region);
  }
}

void Mover::stamp_untracked(Region& region) {
  std::erase_if(untracked_, [this](Stamp use) { return config_.streams->complete(use); });
  for (const Stamp use : untracked_) stamp(region, use);
}

// As if untracked launches had named it; but policies learn nothing from that.
void Mover::used_untracked(Region& region) {
  stamp_untracked(region);
  region.launched = true;
  if (region.dead.load(std::memory_order_seq_cst)) return;
  const std::uint32_t life = region.life.load(std::memory_order_seq_cst);
  for (std::uint32_t i = 0; i < region.page_count; ++i) region.pages[i].life = life;
}

void Mover::on_use(const pagetable::LoggedUse& use) {
  Region* region = config_.space->region_at(use.span.first());
  if (region == nullptr) return;  // freed since; its last stamp came with the free
  const std::uint32_t first = region->page_at(use.span.first());
  const std::uint32_t last = std::min(region->page_at(use.span.end() - 1), region->page_count - 1);
  const std::uint32_t count = last - first + 1;
  if (use.kind == LoggedUse::Kind::changed) return region_changed(*region);
  const bool write = use.span.access() == Access::write;
  if (use.kind != LoggedUse::Kind::declared) region->launched = true;
  const bool whole = count == region->page_count && count > 8;
  if (whole) stamp(*region, use.stamp);
  const bool worth_frames = count * region->page_bytes() <= device_of(*region).config.hbm_bytes / 2;
  for (std::uint32_t i = first; i <= last; ++i) {
    Page& page = region->pages[i];
    if (!whole) stamp(*region, page, use.stamp);
    // The threads' logs are read one after the other, so a use in an earlier life may come later.
    if (std::int32_t(use.life - page.life) > 0) page.life = use.life;
    if (use.kind == LoggedUse::Kind::feared) continue;
    if (page.last_write != write) page.last_write = write;  // launching threads read the same cache line
    if (page.prefetched) {
      page.prefetched = false;
      counters_.prefetched_used_bytes += region->page_bytes();
    }
    if (page.mapped == Mapped::slot && worth_frames && !page.in_place) queue_promotion({region, i});
  }
  const bool told = use.kind != LoggedUse::Kind::feared;
  if (!told || region->state.load(std::memory_order_relaxed) != pagetable::RegionState::live) return;
  tell_policies(
      [&](Policy& policy) { policy.used({region->id, first, count, use.span.access(), use.stamp.stream()}); });
}

void Mover::stamp(Region& region, Page& page, Stamp use) {
  for (Stamp& known : page.uses) {
    if (known == use) return;
    if (known.empty() || known.stream() == use.stream() || config_.streams->complete(known)) {
      known = known.stream() == use.stream() && known.epoch() > use.epoch() ? known : use;
      return;
    }
  }
  // A third stream at once: the region remembers the eldest for all its pages.
  stamp(region, page.uses[0]);
  page.uses[0] = page.uses[1];
  page.uses[1] = use;
}

void Mover::stamp(Region& region, Stamp use) {
  for (Stamp& known : region.uses) {
    if (known.stream() != use.stream() && !config_.streams->complete(known)) continue;
    known = known.stream() == use.stream() && known.epoch() > use.epoch() ? known : use;
    return;
  }
  region.uses.push_back(use);
}

}  // namespace vmem::migration
