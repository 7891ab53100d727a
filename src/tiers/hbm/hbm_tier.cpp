#include "tiers/hbm/hbm_tier.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"

namespace vmem::tiers {
namespace {

using pagetable::kGranuleBytes;

constexpr std::chrono::microseconds kPoll{20};  // between looks at events
constexpr std::chrono::seconds kBeforeAskingAgain{1};

std::vector<std::uint32_t> slabs_of(std::uint64_t bytes, std::uint64_t slab_bytes) {
  std::vector<std::uint32_t> granules;
  for (std::uint64_t left = bytes; left != 0; left -= std::min(left, slab_bytes))
    granules.push_back(static_cast<std::uint32_t>(std::min(left, slab_bytes) / kGranuleBytes));
  return granules;
}

}  // namespace

HbmTier::HbmTier(Config config)
    : config_(std::move(config)),
      name_(fmt::format("HBM of GPU {}", config_.ordinal)),
      info_{.name = name_},
      ledger_(config_.on_ready),
      slab_granules_(slabs_of(config_.bytes, config_.slab_bytes)),
      slabs_(slab_granules_.size()),
      space_(slab_granules_) {
  registered_.slabs.resize(slabs_.size());
}

Result<std::unique_ptr<HbmTier>> HbmTier::create(Config config) {
  std::unique_ptr<HbmTier> tier(new HbmTier(std::move(config)));
  VMEM_TRY(tier->open());
  return tier;
}

Status HbmTier::open() {
  const gpu::DriverRef& driver = config_.driver;
  CUdevice device = 0;
  VMEM_TRY(driver->check((*driver)->cuDeviceGet(&device, config_.ordinal), "cuDeviceGet"));
  VMEM_ASSIGN(context_, gpu::PrimaryContext::retain(driver, device));
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver, context_.context()));
  for (Lane& each : lanes_) {
    VMEM_ASSIGN(each.stream, gpu::Stream::create(driver));
  }
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    VMEM_ASSIGN(slabs_[slab], gpu::DeviceMemory::create(driver, slab_granules_[slab] * kGranuleBytes));
    space_.set_memory(slab, true);
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

HbmTier::~HbmTier() {
  {
    const std::lock_guard lock(mutex_);
    wanted_.stop = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!context_) return;
  // A failure means a lost context, whose memory is gone with it.
  const auto current = gpu::ScopedContext::push(config_.driver, context_.context());
  registered_.slabs.clear();
  slabs_.clear();
  spare_events_.clear();
  for (Lane& each : lanes_) each.stream.reset();
}

// ---- any thread ----

void HbmTier::set_limit(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    space_.limit(bytes / kGranuleBytes);
    wanted_.fit = true;
  }
  woken_.notify_all();
}

std::uint64_t HbmTier::slab_bytes() const {
  const std::lock_guard lock(mutex_);
  return space_.memory_granules() * kGranuleBytes;
}

TierUsage HbmTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {.budget_bytes = budget_granules() * kGranuleBytes,
          .used_bytes = used_granules_ * kGranuleBytes,
          .ready_bytes = lost_ ? 0 : space_.free_granules() * kGranuleBytes};
}

std::uint64_t HbmTier::budget_granules() const {
  const std::uint64_t usable = space_.usable_granules();
  return lost_ ? 0 : usable - std::min(usable, spoilt_granules_);
}

// ---- the owner's calls ----

// Granules of a page that is to move out of a slab are counted once: those that it moves to must
// not be granted to another one meanwhile.
Result<SlotGrant> HbmTier::allocate(std::uint64_t page_bytes) {
  const std::uint64_t granules = page_bytes / kGranuleBytes;
  const std::lock_guard lock(mutex_);
  if (used_granules_ + granules > budget_granules()) return SlotGrant{Grant::full, 0};
  auto runs = space_.take(granules);
  // Room is being wiped, or pages are moving into it.
  if (!runs) return SlotGrant{Grant::later, 0};
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<SlotId>(slots_.size()));
    slots_.emplace_back();
  }
  const SlotId slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = {.runs = *std::move(runs), .granules = granules, .grant = ++last_grant_};
  used_granules_ += granules;
  return SlotGrant{Grant::granted, slot};
}

void HbmTier::release(SlotId id) {
  {
    const std::lock_guard lock(mutex_);
    Slot slot = std::exchange(slots_[id], {});
    free_slots_.push_back(id);
    used_granules_ -= slot.granules;
    tasks_.push_back([this, runs = std::move(slot.runs)] { wipe(runs); });
  }
  woken_.notify_all();
}

Status HbmTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    transfer.if_changed = false;  // every store copies
    transfer.id = ledger_.begin(transfer.direction, [&](std::uint64_t id) {
      Transfer job = transfer;
      job.id = id;
      const std::lock_guard lock(mutex_);
      tasks_.push_back([this, job] { start(job); });
      ++slots_[transfer.slot].in_flight;
    });
  }
  woken_.notify_all();
  return {};
}

Status HbmTier::poll(std::vector<Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

Finished HbmTier::finish() noexcept {
  ledger_.finish();
  std::unique_lock lock(mutex_);
  wanted_.unregister = true;
  woken_.notify_all();
  registered_.ended.wait(lock, [&] { return !wanted_.unregister; });
  return Finished::all_ended;
}

// ---- reads by others ----

void HbmTier::register_memory(Register registers) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back([this, registers = std::move(registers)]() mutable {
      registered_.make = std::move(registers);
      for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
        if (slabs_[slab]) register_slab(slab);
      }
    });
  }
  woken_.notify_all();
}

// The tier's thread changes neither the address nor the registration of a slab with a page in it.
std::optional<std::span<std::byte>> HbmTier::pin(SlotId id) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[id];
  if (lost_ || slot.runs.size() != 1) return std::nullopt;
  const GranuleRun& run = slot.runs.front();
  if (!registered_.slabs[run.slab] || !space_.is_in_use(run.slab)) return std::nullopt;
  ++slot.pins;
  return std::span(reinterpret_cast<std::byte*>(address(run)), run.count * kGranuleBytes);
}

void HbmTier::unpin(SlotId id) {
  {
    const std::lock_guard lock(mutex_);
    --slots_[id].pins;
    if (!space_.is_limited()) return;
    wanted_.fit = true;  // it may move now
  }
  woken_.notify_all();
}

// ---- the tier's thread ----

void HbmTier::run() {
  ::prctl(PR_SET_NAME, "vmem-hbm");
  const auto current = gpu::ScopedContext::push(config_.driver, context_.context());
  if (!current) failed(current.error());
  MemoryReserve reserve;
  while (wait()) {
    (void)reserve.refill();
    std::deque<Inbox::Task> tasks;
    bool unregister = false;
    {
      const std::lock_guard lock(mutex_);
      unregister = wanted_.unregister;
      tasks.swap(tasks_);
      wanted_.fit = false;
    }
    for (Inbox::Task& task : tasks) task();
    if (unregister) unregister_all();
    end_transfers();
    busy_ = fit();
  }
}

// False: the tier ends.
bool HbmTier::wait() {
  std::unique_lock lock(mutex_);
  const auto woken = [&] { return wanted_.stop || wanted_.fit || wanted_.unregister || !tasks_.empty(); };
  if (!is_idle()) {
    woken_.wait_for(lock, busy_ ? std::chrono::microseconds(0) : kPoll, woken);
  } else if (ask_again_ && !busy_) {
    woken_.wait_until(lock, *ask_again_, woken);
  } else if (!busy_) {
    woken_.wait(lock, woken);
  }
  return !wanted_.stop || wanted_.unregister || !tasks_.empty() || !is_idle();
}

CUdeviceptr HbmTier::address(const GranuleRun& run) const { return slabs_[run.slab].get() + run.first * kGranuleBytes; }

// ---- transfers ----

void HbmTier::start(const Transfer& transfer) {
  GranuleRuns runs;
  {
    const std::lock_guard lock(mutex_);
    runs = slots_[transfer.slot].runs;
  }
  Lane& on = lane(transfer.direction);
  InFlight begun{.id = transfer.id, .slot = transfer.slot, .done = {}};
  Status queued = queue_copies(transfer, runs, on);
  if (queued && !spare_events_.empty()) {
    begun.done = std::move(spare_events_.back());
    spare_events_.pop_back();
  } else if (queued) {
    auto made = gpu::Event::create(config_.driver);
    if (made) begun.done = *std::move(made);
    if (!made) queued = std::unexpected(made.error());
  }
  if (queued) queued = begun.done.record(on.stream.get());
  if (queued) return on.in_flight.push_back(std::move(begun));
  (void)on.stream.synchronize();  // pieces that were queued use the memory of the transfer
  complete(begun, transfer.direction, queued);
}

Status HbmTier::queue_copies(const Transfer& transfer, const GranuleRuns& runs, Lane& lane) {
  const gpu::Driver& driver = *config_.driver;
  std::byte* host = transfer.host;
  for (const GranuleRun& run : runs) {
    const std::uint64_t bytes = run.count * kGranuleBytes;
    const CUresult result = transfer.direction == Direction::store
                                ? driver->cuMemcpyHtoDAsync(address(run), host, bytes, lane.stream.get())
                                : driver->cuMemcpyDtoHAsync(host, address(run), bytes, lane.stream.get());
    VMEM_TRY(driver.check(result, transfer.direction == Direction::store ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync"));
    host += bytes;
  }
  return {};
}

void HbmTier::end_transfers() {
  for (const Direction direction : {Direction::load, Direction::store}) {
    while (end_next(direction)) {
    }
  }
}

// False: the oldest transfer is in flight still, or there is none.
bool HbmTier::end_next(Direction direction) {
  Lane& on = lane(direction);
  if (on.in_flight.empty()) return false;
  const auto ended = on.in_flight.front().done.complete();
  if (ended && !*ended) return false;
  InFlight oldest = std::move(on.in_flight.front());
  on.in_flight.pop_front();
  complete(oldest, direction, ended ? Status{} : Status(std::unexpected(ended.error())));
  if (ended) spare_events_.push_back(std::move(oldest.done));
  return true;
}

void HbmTier::complete(const InFlight& ended, Direction direction, const Status& how) {
  Completion completion;
  completion.id = ended.id;
  if (!how) {
    failed(how.error());
    const bool gone = direction == Direction::load && how.error().status == VMEM_ERROR_DEVICE_LOST;
    completion.outcome = gone ? Outcome::lost : Outcome::failed;
    completion.error = how.error();
  }
  {
    const std::lock_guard lock(mutex_);
    --slots_[ended.slot].in_flight;
  }
  ledger_.complete(std::move(completion), direction);
}

void HbmTier::failed(const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(lost_, true)) return;
  }
  if (const auto times = failures_.next(); times.logged)
    VMEM_LOG_ERROR("{} that is lent: {} ({} such failures)", name_, error.message, times.count);
}

// The stores stream orders it before later stores to the same granules.
void HbmTier::wipe(const GranuleRuns& runs) {
  const gpu::Driver& driver = *config_.driver;
  const CUstream stream = lane(Direction::store).stream.get();
  for (const GranuleRun& run : runs) {
    const Status wiped =
        driver.check(driver->cuMemsetD8Async(address(run), 0, run.count * kGranuleBytes, stream), "cuMemsetD8Async");
    if (!wiped) return spoil(runs, wiped.error());
  }
  {
    const std::lock_guard lock(mutex_);
    space_.give_back(runs);
  }
  ledger_.tell_ready();
}

void HbmTier::spoil(const GranuleRuns& runs, const Error& error) {
  failed(error);
  const std::lock_guard lock(mutex_);
  for (const GranuleRun& run : runs) spoilt_granules_ += run.count;
}

// ---- slabs ----

// One thing at a time, so that transfers do not wait. True: it did something.
bool HbmTier::fit() {
  std::optional<std::uint32_t> lacks, superfluous;
  {
    const std::lock_guard lock(mutex_);
    if (lost_ || wanted_.stop) return false;
    lacks = space_.lacks_memory();
    superfluous = space_.is_superfluous();
  }
  if (superfluous) {
    free_slab(*superfluous);
    return true;
  }
  if (!lacks) ask_again_.reset();
  const bool ask = lacks && (!ask_again_ || std::chrono::steady_clock::now() >= *ask_again_);
  return (ask && back(*lacks)) || move_one();
}

bool HbmTier::back(std::uint32_t slab) {
  auto memory = gpu::DeviceMemory::create(config_.driver, slab_granules_[slab] * kGranuleBytes);
  if (!memory) {
    if (const auto times = failures_.next(); times.logged)
      VMEM_LOG_WARN("{} lends less than it was told to: {} ({} such failures)", name_, memory.error().message,
                    times.count);
    ask_again_ = std::chrono::steady_clock::now() + kBeforeAskingAgain;
    return false;
  }
  ask_again_.reset();
  slabs_[slab] = *std::move(memory);
  if (registered_.make) register_slab(slab);
  {
    const std::lock_guard lock(mutex_);
    space_.set_memory(slab, true);
  }
  ledger_.tell_ready();
  return true;
}

// A slab that cannot be registered is used all the same, and nothing in it is pinned.
void HbmTier::register_slab(std::uint32_t slab) {
  auto registered =
      registered_.make({reinterpret_cast<std::byte*>(slabs_[slab].get()), slab_granules_[slab] * kGranuleBytes});
  if (!registered) return failed(registered.error());
  const std::lock_guard lock(mutex_);
  registered_.slabs[slab] = *std::move(registered);
}

void HbmTier::unregister_all() {
  registered_.make = {};
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    std::shared_ptr<void> registered;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    registered = std::move(registered_.slabs[slab]);
  }
  {
    const std::lock_guard lock(mutex_);
    wanted_.unregister = false;
  }
  registered_.ended.notify_all();
}

// Its wipes are complete before it goes back. A limit that was raised meanwhile has it backed
// again.
void HbmTier::free_slab(std::uint32_t slab) {
  std::shared_ptr<void> registered;
  {
    const std::lock_guard lock(mutex_);
    space_.set_memory(slab, false);
    registered = std::move(registered_.slabs[slab]);
  }
  registered.reset();
  if (const auto done = lane(Direction::store).stream.synchronize(); !done) failed(done.error());
  slabs_[slab].reset();
}

bool HbmTier::move_one() {
  auto move = next_move();
  if (!move) return false;
  const Status moved = copy_within(*move);
  if (!moved) failed(moved.error());
  // If the copy failed, or the slot was released or pinned meanwhile.
  GranuleRuns leaves = move->to;
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[move->slot];
    if (moved && slot.grant == move->grant && slot.pins == 0) {
      const auto at = slot.runs.begin() + static_cast<std::ptrdiff_t>(move->run);
      leaves = {*at};
      slot.runs.insert(slot.runs.erase(at), move->to.begin(), move->to.end());
    }
  }
  wipe(leaves);
  return moved.has_value();
}

// A run of a page in a slab that is not in use, and free granules elsewhere.
std::optional<HbmTier::Move> HbmTier::next_move() {
  const std::lock_guard lock(mutex_);
  if (!space_.is_limited() || space_.free_granules() == 0) return std::nullopt;
  for (SlotId id = 0; id < slots_.size(); ++id) {
    const Slot& slot = slots_[id];
    if (slot.grant == 0 || slot.in_flight != 0 || slot.pins != 0) continue;
    const auto found =
        std::ranges::find_if(slot.runs, [&](const GranuleRun& run) { return !space_.is_in_use(run.slab); });
    if (found == slot.runs.end()) continue;
    auto to = space_.take(found->count);
    if (!to) continue;
    return Move{.slot = id,
                .grant = slot.grant,
                .run = static_cast<std::size_t>(found - slot.runs.begin()),
                .from = *found,
                .to = *std::move(to)};
  }
  return std::nullopt;
}

// Waits: loads of the slot use another stream.
Status HbmTier::copy_within(const Move& move) {
  const gpu::Driver& driver = *config_.driver;
  const gpu::Stream& stream = lane(Direction::store).stream;
  GranuleRun from = move.from;
  for (const GranuleRun& to : move.to) {
    VMEM_TRY(driver.check(driver->cuMemcpyDtoDAsync(address(to), address(from), to.count * kGranuleBytes, stream.get()),
                          "cuMemcpyDtoDAsync"));
    from.first += to.count;
  }
  return stream.synchronize();
}

}  // namespace vmem::tiers
