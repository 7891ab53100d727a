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

namespace vmem::migration {

namespace {

// Poll interval while work is in flight: well below the time of one page's copy.
constexpr auto kPollInterval = std::chrono::microseconds(20);
// Interval for work that nobody waits for.
constexpr auto kLookInterval = std::chrono::milliseconds(1);
// After this many failed polls in a row, about 20 ms, the driver counts as lost.
constexpr std::uint32_t kPollFailuresMax = 1000;

}  // namespace

Mover::Mover(MoverConfig config) : parts_(std::move(config)) {
  for (Device& device : parts_.devices.all()) parts_.lending.balance(device);
  if (parts_.core.config.shares_pages) parts_.committer.expect_first_slots(parts_.sizing.shared_page_bytes(0));
}

Mover::~Mover() {
  stop();
  // After a device loss transfers may be in flight, and this destructor destroys their frames.
  for (std::size_t near = 0; near < parts_.near.count(); ++near) parts_.near[near].tier->finish();
  const auto quarantined = [](tiers::Tier* tier) {
    return tier != nullptr && tier->finish() == tiers::Finished::quarantined;
  };
  const bool spill = quarantined(parts_.core.config.spill), files = quarantined(parts_.core.config.files);
  if (spill || files) parts_.devices.keep_awaited_frames();
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
  for (Request* request : requests_) request->finish(ended_error());
  requests_.clear();
}

// After the mover's end, any thread that finds requests in the list answers them.
void Mover::refuse_posted() {
  for (Request* request = posted_.exchange(nullptr, std::memory_order_seq_cst); request != nullptr;) {
    Request* const next = request->posted_before;  // the owner may destroy the request after finish
    request->finish(ended_error());
    request = next;
  }
}

Status Mover::call(Request& request) {
  post(request);
  if (parts_.core.config.serve) parts_.core.config.serve(request);
  return request.wait();
}

void Mover::post(Request& request) {
  request.posted_before = posted_.load(std::memory_order_relaxed);
  while (!posted_.compare_exchange_weak(request.posted_before, &request, std::memory_order_seq_cst)) {
  }
  poke();
  if (ended_.load(std::memory_order_seq_cst)) refuse_posted();
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
  const auto& driver = *parts_.core.config.driver;
  (void)driver->cuCtxSetCurrent(parts_.core.config.devices.front().context);
  // Our queries must not invalidate a capture in another thread.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  MemoryReserve reserve;
  for (;;) {
    poked_.store(false, std::memory_order_seq_cst);  // before step reads what a poke announces
    if (stopping_.load(std::memory_order_seq_cst)) return;
    (void)reserve.refill();
    const std::uint64_t began_us = parts_.core.now_us();
    const Next next = step_or_wait();
    const std::uint64_t ended_us = parts_.core.now_us();
    parts_.core.counters.mover_busy_us += ended_us - began_us;
    if (parts_.core.worked) parts_.core.record([&](trace::Recorder& to) { to.busy(began_us * 1000, ended_us * 1000); });
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

void Mover::record_step(trace::Recorder& to) {
  std::uint64_t made = 0, unmade = 0;
  for (const Device& device : parts_.devices.all()) {
    made += device.hbm.frames_created();
    unmade += device.hbm.frames_destroyed();
  }
  to.frames(made, unmade, parts_.core.now_ns());
  parts_.core.config.streams->take_timings([&](const StreamTable::EpochTime& timed) {
    to.add(timed.seen_ns, trace::EpochEnds{timed.epoch.stream(), timed.epoch.epoch(), timed.gpu_ns});
  });
}

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
  parts_.core.worked = false;
  take_posted();
  if (!parts_.core.lost) {
    if (auto polled = poll(); !polled) {
      poll_failed(polled.error());
    } else {
      poll_failures_ = 0;
    }
  }
  parts_.uses.drain();
  parts_.in_place.look();
  if (parts_.need_below.has_grown()) parts_.below.pacing().room_came();
  advance_requests();
  if (!parts_.core.lost) {
    parts_.endings.finish();
    parts_.lending.return_lent();
    if (parts_.core.config.only_asked) {
      parts_.ahead.forget_asked();
    } else {
      parts_.ahead.prefetch();
      parts_.ahead.promote();
    }
    parts_.host.hold_quota();
    parts_.committer.follow_need();
    if (parts_.core.config.spill != nullptr) parts_.spill.ahead(parts_.committer.largest_page());
  }
  parts_.residency.find_all_resident();
  parts_.core.record([this](trace::Recorder& to) { record_step(to); });
  return next_step();
}

Mover::Next Mover::next_step() const {
  if (parts_.core.worked || posted_.load(std::memory_order_acquire) != nullptr) return Next::again;
  // After a device loss late in a step, requests are still to be answered.
  if (parts_.core.lost) return requests_.empty() ? Next::sleep : Next::again;
  const bool waiting = !requests_.empty() || !parts_.transfers.empty() || !parts_.endings.regions().empty() ||
                       parts_.ahead.asked() || parts_.ahead.waits();
  if (waiting) return Next::soon;
  const bool looking = !parts_.promotions.empty() || parts_.need_below.lapses() || parts_.lending.waits() ||
                       parts_.in_place.waits() || parts_.host.over_quota();
  return looking ? Next::later : Next::sleep;
}

void Mover::take_posted() {
  Request* newest = posted_.exchange(nullptr, std::memory_order_acquire);
  const std::size_t before = requests_.size();
  for (; newest != nullptr; newest = newest->posted_before) {
    requests_.insert(requests_.begin() + std::ptrdiff_t(before), newest);  // oldest first
  }
}

void Mover::advance_requests() {
  std::deque<Request*> waiting;
  std::swap(waiting, requests_);
  const HostRoom::ForRequests turn(parts_.host);
  for (Request* request : waiting) {
    std::optional<Status> result;
    if (parts_.core.lost) {
      result = std::unexpected(*parts_.core.lost);
    } else {
      parts_.core.requests_waiting = requests_.size();
      result = advance(*request);
    }
    if (!result) {
      requests_.push_back(request);
      continue;
    }
    parts_.core.worked = true;
    if (!*result && result->error().status == VMEM_ERROR_DEVICE_LOST) parts_.core.lose_device(result->error());
    request->finish(std::move(*result));
  }
}

// Fails a request that runs out of memory; the mover's thread continues.
std::optional<Status> Mover::advance(Request& request) {
  try {
    return request.advance(parts_);
  } catch (const std::bad_alloc&) {
    // The message is short enough to need no allocation.
    return Status(fail(VMEM_ERROR_OUT_OF_MEMORY, "no host memory", ENOMEM));
  }
}

Status Mover::poll() {
  const bool watching = !requests_.empty() || !parts_.endings.regions().empty() || !parts_.transfers.empty() ||
                        !parts_.promotions.empty() || parts_.ahead.waits() || parts_.lending.waits() ||
                        parts_.in_place.waits() || parts_.core.config.streams->backlog();
  if (!watching) return {};
  const auto streams_polled = parts_.core.config.streams->poll();
  completions_.clear();
  Status tiers_polled;
  for (std::size_t near = 0; near < parts_.near.count() && tiers_polled; ++near)
    tiers_polled = parts_.near[near].tier->poll(completions_);
  if (parts_.core.config.spill != nullptr && tiers_polled) tiers_polled = parts_.core.config.spill->poll(completions_);
  const bool sources = parts_.below.has_sources() || parts_.below.has_rescues();
  if (sources && tiers_polled) tiers_polled = parts_.core.config.files->poll(completions_);
  // Before error handling: tiers do not report these again.
  for (const auto& completion : completions_) finish_transfer(completion);
  if (!completions_.empty()) parts_.pending.settle();
  if ((streams_polled && *streams_polled) || !completions_.empty()) {
    parts_.core.last_progress_us = parts_.core.now_us();
    parts_.core.worked = true;
  }
  if (!streams_polled) return std::unexpected(streams_polled.error());
  return tiers_polled;
}

// A failed poll is repeated in the next step, up to kPollFailuresMax times in a row.
void Mover::poll_failed(const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST || ++poll_failures_ >= kPollFailuresMax) parts_.core.lose_device(error);
}

void Mover::record_transfer(trace::Recorder& to, PageRef ref, const InFlight& transfer, bool changed) const {
  using Kind = InFlight::Kind;
  const bool below = transfer.kind != Kind::frame && transfer.kind != Kind::returned;
  const bool compares = transfer.kind == Kind::compare || transfer.kind == Kind::arrival_check;
  const std::uint64_t at_ns = transfer.since_us * 1000;
  to.add(at_ns,
         trace::Transfer{.took_ns = parts_.core.now_ns() - at_ns,
                         .direction = transfer.direction == tiers::Direction::load ? trace::Transfer::Direction::in
                                                                                   : trace::Transfer::Direction::out,
                         .place = below                     ? trace::Transfer::Place::below
                                  : transfer.from.near != 0 ? trace::Transfer::Place::peer
                                                            : trace::Transfer::Place::host,
                         .granule = ref.begin(),
                         .granules = ref.end() - ref.begin(),
                         .copied = !compares && (!transfer.if_changed || changed)});
}

void Mover::finish_transfer(const tiers::Completion& completion) {
  const auto found = parts_.transfers.find(completion.id);
  if (found == parts_.transfers.end()) return;
  const InFlight transfer = found->second;
  parts_.transfers.erase(found);
  const PageRef ref{transfer.region, transfer.page};
  parts_.core.record([&](trace::Recorder& to) { record_transfer(to, ref, transfer, completion.changed); });
  Page& page = ref.page();
  if (transfer.kind == InFlight::Kind::spill) return parts_.spill.finish(ref, transfer, completion);
  if (transfer.kind == InFlight::Kind::arrival || transfer.kind == InFlight::Kind::arrival_check)
    return parts_.direct.finish(ref, completion.id, transfer, completion);
  if (transfer.kind == InFlight::Kind::returned) return parts_.lending.finish(ref, completion.id, transfer, completion);
  if (transfer.kind == InFlight::Kind::compare) return parts_.fingerprints.finish(ref, transfer, completion);
  const bool load = transfer.direction == tiers::Direction::load;
  Device& device = parts_.devices.of(*ref.region);
  (load ? device.loads_bytes : device.stores_bytes) -= transfer.bytes;
  if (std::uint64_t* const copied = device.host_copies(transfer.from.near, transfer.direction, transfer.if_changed))
    *copied -= transfer.bytes;
  const bool latest_store = page.store == completion.id;
  if (latest_store) page.store = 0;
  if (transfer.if_changed) {
    // A tier may count an earlier store's bytes with the next one's.
    const std::uint64_t copied = std::min(completion.changed_bytes, transfer.bytes);
    parts_.core.counters.migrated_out_bytes += copied;
    parts_.core.counters.dropped_bytes += transfer.bytes - copied;
    if (transfer.from.near != 0) parts_.core.counters.peer_out_bytes += copied;
    if (completion.outcome == tiers::Outcome::done) parts_.in_place.compared(ref, copied);
  }
  if (completion.changed) {
    parts_.fingerprints.found_changed(ref, completion.changed_bytes);
    Below::distrust(page);
  }
  if (transfer.if_changed && !completion.changed) page.writes_in_a_row = 0;
  if (load && completion.outcome == tiers::Outcome::done) parts_.fingerprints.learn(ref);
  if (load) parts_.near.passed_through(ref);
  if (completion.outcome == tiers::Outcome::done) return;
  if (ref.region->state.load(std::memory_order_relaxed) != pagetable::RegionState::live) return;
  if (load && page.wait == completion.id) parts_.unread.load_failed(ref, completion);
  if (latest_store && page.version != 0 && page.slot_current()) store_failed(ref, completion.error);
}

// The slot has no valid copy. If the frame still holds the bytes, the page takes it back, and the
// next eviction stores them again.
void Mover::store_failed(PageRef ref, const Error& error) {
  Page& page = ref.page();
  if (!page.has_frame()) return parts_.unread.lose(ref, error);
  VMEM_LOG_WARN("the copy of the page at {:#x} failed, it stays in HBM: {}", parts_.core.address_of(ref),
                error.message);
  page.slot_version = 0;
  if (!page.standby()) return;
  parts_.devices.of(*ref.region).hbm.retake(page.frame);
  page.take_frame_back();
  parts_.core.config.policy->page_arrived(ref.id(), Cause::use);
}

}  // namespace vmem::migration
