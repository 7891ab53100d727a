#include "migration/mover.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace vmem::migration {

using pagetable::Mapped;

namespace {

// While work is in flight the mover looks again this often: well below the time of one page's copy.
constexpr auto kPollInterval = std::chrono::microseconds(20);

tiers::FramePool::Config hbm_pool(const MoverConfig& config, const MoverDevice& device) {
  tiers::FramePool::Config pool;
  pool.driver = config.driver;
  pool.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device.ordinal}};
  pool.accessors = {pool.location};
  pool.budget_bytes = device.hbm_bytes;
  pool.name = "HBM";
  return pool;
}

}  // namespace

Mover::Mover(MoverConfig config) : config_(std::move(config)) {
  for (const MoverDevice& device : config_.devices) {
    devices_.push_back(std::make_unique<DeviceState>(device, hbm_pool(config_, device)));
  }
}

Mover::~Mover() { stop(); }

void Mover::start() {
  thread_ = std::thread([this] { run(); });
}

void Mover::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  poke();
  thread_.join();
}

Status Mover::call(Request& request) {
  post(request);
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
  // The default slack of 50 µs would double the poll interval.
  ::prctl(PR_SET_TIMERSLACK, 1'000UL);
  const auto& driver = *config_.driver;
  (void)driver->cuCtxSetCurrent(config_.devices.front().context);
  // A capture in another thread must not be invalidated by our queries.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  while (!stopping_.load(std::memory_order_acquire)) {
    poked_.store(false, std::memory_order_seq_cst);
    const Next next = step();
    if (next == Next::again) continue;
    std::unique_lock lock(sleep_mutex_);
    sleeping_.store(true, std::memory_order_seq_cst);
    const auto awake = [&] { return poked_.load(std::memory_order_seq_cst); };
    if (next == Next::soon) {
      wake_.wait_for(lock, kPollInterval, awake);
    } else {
      wake_.wait(lock, awake);
    }
    sleeping_.store(false, std::memory_order_seq_cst);
  }
}

Mover::Next Mover::step() {
  worked_ = false;
  take_posted();
  if (!lost_) {
    if (auto polled = poll(); !polled) lose_device(polled.error());
  }
  drain_uses();
  advance_requests();
  if (!lost_) {
    finish_endings();
    prefetch_ahead();
    promote();
  }
  return next_step();
}

Mover::Next Mover::next_step() const {
  if (worked_ || posted_.load(std::memory_order_acquire) != nullptr) return Next::again;
  const bool waiting = !requests_.empty() || !in_flight_.empty() || !ending_.empty() || !asked_ahead_.empty() || plan_waits_;
  return waiting && !lost_ ? Next::soon : Next::sleep;
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
  for (Request* request : waiting) {
    std::optional<Status> result;
    if (lost_) {
      result = std::unexpected(*lost_);
    } else {
      result = request->advance(*this);
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

void Mover::lose_device(const Error& error) {
  if (lost_) return;
  lost_ = error;
  lost_->status = VMEM_ERROR_DEVICE_LOST;
  VMEM_LOG_ERROR("the GPU context is lost, vmem stops here: {}", error.message);
}

Status Mover::poll() {
  const bool watching = !requests_.empty() || !ending_.empty() || !in_flight_.empty() || !promotions_.empty() ||
                        plan_waits_ || config_.streams->backlog();
  if (!watching) return {};
  VMEM_ASSIGN(const bool progress, config_.streams->poll());
  completions_.clear();
  VMEM_TRY(config_.backing->poll(completions_));
  for (const auto& completion : completions_) finish_transfer(completion);
  if (!completions_.empty()) settle_pending();
  if (progress || !completions_.empty()) {
    last_progress_us_ = config_.now_us();
    worked_ = true;
  }
  return {};
}

void Mover::finish_transfer(const tiers::Completion& completion) {
  const auto found = in_flight_.find(completion.id);
  if (found == in_flight_.end()) return;
  const InFlight transfer = found->second;
  in_flight_.erase(found);
  DeviceState& device = device_of(*transfer.region);
  Page& page = transfer.region->pages[transfer.page];
  const bool load = transfer.direction == tiers::Direction::load;
  if (load) device.loads_bytes -= transfer.bytes;
  if (page.store == completion.id) page.store = 0;
  if (completion.outcome == tiers::Outcome::done) return;
  // Without its bytes the page has no current version anywhere.
  const bool only_copy = load ? page.wait == completion.id : page.slot_current();
  if (!only_copy) return;
  VMEM_LOG_ERROR("a page at {:#x} is lost: {}",
                 config_.space->address_of(transfer.region->granule_of(transfer.page)), completion.error.message);
  publish_state(*transfer.region, page, PageState(page.state.load()).set(PageState::kLost));
}

void Mover::settle_pending() {
  std::erase_if(pending_, [&](PageRef ref) {
    Page& page = ref.page();
    if (running(page.wait)) return false;
    page.wait = 0;
    const PageState state(page.state.load(std::memory_order_relaxed));
    if (state.has(PageState::kPending)) publish_state(*ref.region, page, state.clear(PageState::kPending));
    return true;
  });
}

void Mover::drain_uses() {
  config_.threads->drain([this](const pagetable::LoggedUse& use) { on_use(use); });
}

void Mover::on_use(const pagetable::LoggedUse& use) {
  Region* region = config_.space->region_at(use.span.first());
  if (region == nullptr) return;  // freed since; its last stamp came with the free
  const std::uint32_t first = region->page_at(use.span.first());
  const std::uint32_t last = std::min(region->page_at(use.span.end() - 1), region->page_count - 1);
  const std::uint32_t count = last - first + 1;
  const bool write = use.span.access() == Access::write;
  const bool whole = count == region->page_count && count > 8;
  if (whole) stamp(*region, use.stamp);
  const bool worth_frames = count * region->page_bytes() <= device_of(*region).config.hbm_bytes / 2;
  for (std::uint32_t i = first; i <= last; ++i) {
    Page& page = region->pages[i];
    if (!whole) stamp(*region, page, use.stamp);
    page.last_write = write;
    if (page.prefetched) {
      page.prefetched = false;
      counters_.prefetched_used_bytes += region->page_bytes();
    }
    if (page.mapped == Mapped::slot && worth_frames && !page.in_place && !page.promoting) {
      page.promoting = true;
      promotions_.push_back({region, i});
    }
  }
  if (region->state.load(std::memory_order_relaxed) != pagetable::RegionState::live) return;
  config_.policy->used({region->id, first, count, use.span.access(), use.stamp.stream()});
}

void Mover::stamp(Region& region, Page& page, Stamp use) {
  for (Stamp& known : page.uses) {
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
