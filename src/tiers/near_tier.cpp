#include "tiers/near_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "gpu/memory_location.hpp"

namespace vmem::tiers {
namespace {

// During uninterrupted copies in one direction, to the host or from it, the driver's page table
// updates wait about a millisecond each: they share the copy engine, which serves them when the
// copies' time slice ends or when the engine idles briefly. Setting a word with another engine
// after each piece of a copy creates an idle moment, and costs the copy 7 % (docs/decisions/0071).
constexpr std::uint64_t kPieceBytes = std::uint64_t{8} << 20;
constexpr auto kSourcePause = std::chrono::seconds(1);
// The driver holds a lock while it creates host memory, some 200 µs per MiB, and whoever asks for
// it again at once gets it again: without a pause another thread's mapping calls waited until the
// last of 4 GiB were created, 0.5 to 1 s (docs/decisions/0115).
constexpr auto kGrowthPause = std::chrono::microseconds(100);

FramePool::Config pool_config(const NearTier::Config& config) {
  FramePool::Config pool;
  pool.driver = config.driver;
  pool.location = config.location;
  pool.accessors.push_back(pool.location);
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    const CUmemLocation device = gpu::on_device(config.devices[i].ordinal);
    const bool own = device.type == config.location.type && device.id == config.location.id;
    if (!own && (config.reached_by >> i & 1) != 0) pool.accessors.push_back(device);
  }
  pool.budget_bytes = config.budget_bytes;
  pool.largest_budget_bytes = config.largest_budget_bytes;
  pool.source = config.source;
  pool.name = config.location.type == CU_MEM_LOCATION_TYPE_DEVICE
                  ? fmt::format("HBM lent by device {}", config.location.id)
                  : "pinned host memory";
  return pool;
}

}  // namespace

NearTier::NearTier(Config config) : config_(std::move(config)), pool_(pool_config(config_)) {}

Result<std::unique_ptr<NearTier>> NearTier::create(Config config) {
  std::unique_ptr<NearTier> tier(new NearTier(std::move(config)));
  tier->devices_.resize(tier->config_.devices.size());
  for (std::size_t i = 0; i < tier->devices_.size(); ++i) {
    if (!tier->reached_by(i)) continue;
    const Device& device = tier->config_.devices[i];
    tier->devices_[i].context = tier->devices_[i].events.context = device.context;
    tier->devices_[i].copy_events.context = device.copier != nullptr ? device.copier : device.context;
    VMEM_TRY(tier->create_streams(tier->devices_[i]));
  }
  if (gpu::Fingerprinter::available(*tier->config_.driver)) {
    if (auto created = tier->create_records(); !created) {
      if (created.error().status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(std::move(created).error());
      VMEM_LOG_WARN("pages will be copied out of HBM where nobody wrote to them, too: {}", created.error().message);
      tier->drop_records();
    }
  }
  if (tier->config_.growth == Growth::own_thread) tier->grower_ = std::thread([raw = tier.get()] { raw->grow(); });
  return tier;
}

NearTier::~NearTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (grower_.joinable()) grower_.join();
  wait_for_streams();
  // Failures here mean a lost context, whose handles are gone with it.
  const auto& driver = *config_.driver;
  for (PerDevice& device : devices_) {
    for (Link* link : device.links()) {
      for (const InFlight& transfer : link->in_flight) (void)driver->cuEventDestroy(transfer.done);
    }
    for (const Events* events : {&device.events, &device.copy_events}) {
      for (CUevent event : events->spare) (void)driver->cuEventDestroy(event);
    }
    if (device.context == nullptr) continue;
    const auto current = gpu::ScopedContext::push(config_.driver, device.context);
    device.pause.reset();
  }
  drop_records();
}

Status NearTier::create_streams(PerDevice& device) {
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(config_.driver, device.copy_events.context));
  // A pause is a kernel: it goes before those of the program.
  VMEM_ASSIGN(device.load_stream, gpu::Stream::create_urgent(config_.driver));
  VMEM_ASSIGN(device.store_stream, gpu::Stream::create_urgent(config_.driver));
  if (on_host()) {
    VMEM_ASSIGN(device.pause, gpu::DeviceMemory::create(config_.driver, sizeof(std::uint32_t)));
  }
  device.load.stream = device.load_stream.get();
  device.store.stream = device.store_stream.get();
  device.load.events = device.store.events = &device.copy_events;
  device.learn.events = device.check.events = device.returns.events = &device.events;
  if (device.copy_events.context == device.context) return {};
  VMEM_ASSIGN(const auto own, gpu::ScopedContext::push(config_.driver, device.context));
  VMEM_ASSIGN(device.return_stream, gpu::Stream::create(config_.driver));
  device.returns.stream = device.return_stream.get();
  return {};
}

Status NearTier::create_records() {
  const std::uint64_t most = std::max(config_.budget_bytes, config_.largest_budget_bytes) / pagetable::kGranuleBytes;
  for (PerDevice& device : devices_) {
    if (device.context == nullptr) continue;
    VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(config_.driver, device.context));
    if (!records_) VMEM_TRY(records_.create(config_.driver, most));
    VMEM_ASSIGN(device.learner, gpu::Fingerprinter::create(config_.driver));
    VMEM_ASSIGN(device.checker, gpu::Fingerprinter::create(config_.driver));
    device.learn.stream = device.learner->stream();
    device.check.stream = device.checker->stream();
  }
  return {};
}

void NearTier::drop_records() {
  for (PerDevice& device : devices_) {
    if (device.context == nullptr) continue;
    // If the push fails, the context is lost or destroyed, and its memory with it.
    const auto current = gpu::ScopedContext::push(config_.driver, device.context);
    device.learner.reset();
    device.checker.reset();
    device.learn.stream = device.check.stream = nullptr;
    records_.reset();
  }
}

TierUsage NearTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {pool_.budget_bytes(), pool_.used_bytes(), pool_.free_bytes(), pool_.created_bytes()};
}

void NearTier::expect(std::uint64_t page_bytes, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  expected_[page_bytes] = count;
  changed_.notify_all();
}

Result<SlotGrant> NearTier::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto slot = pool_.take_free(page_bytes)) {
    records_.forget(*slot);
    return SlotGrant{Grant::granted, *slot};
  }
  if (growth_error_) return std::unexpected(*std::exchange(growth_error_, std::nullopt));
  if (source_full()) return SlotGrant{Grant::full, 0};
  if (!pool_.can_create(page_bytes)) {
    // No frame is busy, and nobody is to be told.
    VMEM_ASSIGN(const bool room, pool_.make_room(page_bytes, [](std::uint64_t) { return false; }, [](void*) {}));
    if (!room) return SlotGrant{Grant::full, 0};
  }
  awaited_.insert(page_bytes);
  changed_.notify_all();
  return SlotGrant{Grant::later, 0};
}

void NearTier::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  pool_.give_back(slot, 0, nullptr);
  shrink();
}

void NearTier::set_budget(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  pool_.set_budget(bytes);
  ++budgets_;
  full_until_ = {};
  shrink();
  changed_.notify_all();
}

// REQUIRES: mutex_.
void NearTier::shrink() {
  if (auto shrunk = pool_.shrink(); !shrunk)
    VMEM_LOG_WARN("{} keeps memory beyond its budget: {}", config_.name, shrunk.error().message);
}

CUmemGenericAllocationHandle NearTier::handle(SlotId slot) const {
  records_.forget(slot);
  const std::lock_guard lock(mutex_);
  return const_cast<FramePool&>(pool_).frame(slot).handle;
}

std::byte* NearTier::host_address(SlotId slot, pagetable::Access access) const {
  return on_host() ? reinterpret_cast<std::byte*>(device_address(slot, access)) : nullptr;
}

CUdeviceptr NearTier::device_address(SlotId slot, pagetable::Access access) const {
  if (access == pagetable::Access::write) records_.forget(slot);
  return address(slot);
}

CUdeviceptr NearTier::address(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return const_cast<FramePool&>(pool_).frame(slot).window;
}

Result<CUevent> NearTier::take_event(Events& events) const {
  if (!events.spare.empty()) {
    CUevent event = events.spare.back();
    events.spare.pop_back();
    return event;
  }
  const auto& driver = *config_.driver;
  CUevent event = nullptr;
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(events.context), "cuCtxPushCurrent"));
  const CUresult result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  VMEM_TRY(driver.check(result, "cuEventCreate"));
  return event;
}

std::optional<gpu::Fingerprint> NearTier::fingerprint(SlotId slot) const { return records_.fingerprint(slot); }

bool NearTier::can_compare(int device) const {
  return records_.can_compare() && devices_[std::size_t(device)].checker != nullptr;
}

// Does not touch the tier's slots.
Status NearTier::submit_compare(Transfer& transfer, PerDevice& device) {
  const auto& driver = *config_.driver;
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(config_.driver, device.context));
  VMEM_ASSIGN(CUevent done, take_event(device.events));
  const std::uint32_t index = records_.begin_compare(*transfer.compare_with);
  device.check.in_flight.push_back({.id = next_transfer_id(), .done = done, .compared = index});
  Status queued = wait_for(transfer.after, device.check.stream);
  if (queued) queued = device.checker->compare(transfer.frame, transfer.bytes, records_.compare(index));
  if (queued) queued = driver.check(driver->cuEventRecord(done, device.check.stream), "cuEventRecord");
  if (!queued) {
    wait_for_streams();  // as in submit_one
    device.check.in_flight.pop_back();
    device.events.spare.push_back(done);
    (void)records_.end_compare(index);
    return queued;
  }
  transfer.id = device.check.in_flight.back().id;
  transfer.done = done;
  return {};
}

Status NearTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) VMEM_TRY(submit_one(transfer));
  return {};
}

Status NearTier::submit_one(Transfer& transfer) {
  const auto& driver = *config_.driver;
  PerDevice& device = devices_[std::size_t(transfer.device)];
  if (transfer.compare_with) return submit_compare(transfer, device);
  const bool load = transfer.direction == Direction::load;
  const bool learn = load && transfer.watch && records_ && !records_.known(transfer.slot);
  const bool conditional = !load && transfer.if_changed && records_.known(transfer.slot);
  Link& link = learn ? device.learn : conditional ? device.check : device.link_of(transfer);
  if (learn) records_.begin_learning(transfer.slot, transfer.bytes);
  // The driver checks access to the frame for the current context's device, not the stream's.
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(config_.driver, device.context));
  VMEM_ASSIGN(CUevent done, take_event(*link.events));
  link.in_flight.push_back({.id = next_transfer_id(),
                            .done = done,
                            .conditional = conditional ? std::optional(transfer.slot) : std::nullopt,
                            .learned = learn ? std::optional(transfer.slot) : std::nullopt});
  CUresult recorded = CUDA_SUCCESS;
  Status queued = learn         ? queue_record(transfer, device)
                  : conditional ? queue_store_changed(transfer, device)
                                : queue_copy(transfer, device);
  if (queued) recorded = driver->cuEventRecord(done, link.stream);
  if (!queued || recorded != CUDA_SUCCESS) {
    // Part of the transfer may be queued without an event that marks its end: wait, so that nothing
    // runs after the failure.
    wait_for_streams();
    link.in_flight.pop_back();
    records_.forget(transfer.slot);
    // What was queued of the store may have raised it. An earlier store of the slot that is not
    // polled yet is told of both.
    const auto of_slot = [&](const InFlight& each) { return each.conditional == transfer.slot; };
    if (conditional && std::ranges::none_of(link.in_flight, of_slot)) (void)records_.changed_bytes(transfer.slot);
    link.events->spare.push_back(done);
    return queued ? driver.check(recorded, "cuEventRecord") : queued;
  }
  if (!load && !conditional) records_.forget(transfer.slot);
  transfer.if_changed = conditional;
  transfer.id = link.in_flight.back().id;
  if (learn) records_.learning(transfer.slot, transfer.id);
  transfer.done = done;
  return {};
}

Status NearTier::wait_for(std::span<const CUevent> events, CUstream stream) const {
  const auto& driver = *config_.driver;
  for (CUevent event : events) {
    if (event != nullptr) VMEM_TRY(driver.check(driver->cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent"));
  }
  return {};
}

Status NearTier::queue_copy(const Transfer& transfer, PerDevice& device) {
  const Link& link = device.link_of(transfer);
  VMEM_TRY(wait_for(transfer.after, link.stream));
  return on_host() ? queue_host_copy(transfer, device) : queue_peer_copy(transfer, link);
}

Status NearTier::queue_peer_copy(const Transfer& transfer, const Link& link) const {
  const auto& driver = *config_.driver;
  const bool load = transfer.direction == Direction::load;
  const CUdeviceptr slot = address(transfer.slot);
  const CUdeviceptr to = load ? transfer.frame : slot, from = load ? slot : transfer.frame;
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(config_.driver, link.events->context));
  return driver.check(driver->cuMemcpyDtoDAsync(to, from, transfer.bytes, link.stream), "cuMemcpyDtoDAsync");
}

Status NearTier::queue_host_copy(const Transfer& transfer, PerDevice& device) const {
  const auto& driver = *config_.driver;
  const bool load = transfer.direction == Direction::load, yields = device.yields == transfer.direction;
  const CUstream stream = load ? device.load.stream : device.store.stream;
  auto* const host = reinterpret_cast<std::byte*>(address(transfer.slot));
  const std::uint64_t piece_bytes = yields ? kPieceBytes : transfer.bytes;
  for (std::uint64_t at = 0; at < transfer.bytes; at += piece_bytes) {
    const std::uint64_t bytes = std::min(piece_bytes, transfer.bytes - at);
    if (yields && std::exchange(device.pause_due, true))
      VMEM_TRY(driver.check(driver->cuMemsetD32Async(device.pause.get(), 0, 1, stream), "cuMemsetD32Async"));
    if (load) {
      VMEM_TRY(
          driver.check(driver->cuMemcpyHtoDAsync(transfer.frame + at, host + at, bytes, stream), "cuMemcpyHtoDAsync"));
    } else {
      VMEM_TRY(
          driver.check(driver->cuMemcpyDtoHAsync(host + at, transfer.frame + at, bytes, stream), "cuMemcpyDtoHAsync"));
    }
  }
  return {};
}

// A load, then its fingerprint on another stream, which overlaps the next load.
Status NearTier::queue_record(const Transfer& transfer, PerDevice& device) {
  const auto& driver = *config_.driver;
  VMEM_TRY(queue_copy(transfer, device));
  VMEM_ASSIGN(CUevent copied, take_event(device.copy_events));
  const CUresult recorded = driver->cuEventRecord(copied, device.load.stream);
  const CUresult waits =
      recorded == CUDA_SUCCESS ? driver->cuStreamWaitEvent(device.learn.stream, copied, 0) : recorded;
  device.copy_events.spare.push_back(copied);  // reusable: a queued wait keeps its record
  VMEM_TRY(driver.check(waits, recorded == CUDA_SUCCESS ? "cuStreamWaitEvent" : "cuEventRecord"));
  return device.learner->record(transfer.frame, transfer.bytes, records_.of(transfer.slot),
                                records_.pieces(transfer.slot));
}

Status NearTier::queue_store_changed(const Transfer& transfer, PerDevice& device) {
  VMEM_TRY(wait_for(transfer.after, device.check.stream));
  return device.checker->store_changed(transfer.frame, address(transfer.slot), transfer.bytes,
                                       records_.of(transfer.slot), records_.pieces(transfer.slot));
}

void NearTier::wait_for_streams() noexcept {
  for (PerDevice& device : devices_) {
    for (const Link* link : device.links()) {
      // A failure means that the context is lost: nothing runs there.
      if (link->stream != nullptr) (void)(*config_.driver)->cuStreamSynchronize(link->stream);
    }
  }
}

Finished NearTier::finish() noexcept {
  wait_for_streams();
  return Finished::all_ended;
}

Status NearTier::poll(std::vector<Completion>& completions) {
  for (PerDevice& device : devices_) {
    for (Link* link : device.links()) VMEM_TRY(poll_link(*link, completions));
  }
  return {};
}

Status NearTier::poll_link(Link& link, std::vector<Completion>& completions) {
  const auto& driver = *config_.driver;
  while (!link.in_flight.empty()) {
    const InFlight& oldest = link.in_flight.front();
    const CUresult result = driver->cuEventQuery(oldest.done);
    if (result == CUDA_ERROR_NOT_READY) return {};
    VMEM_TRY(driver.check(result, "cuEventQuery"));
    Completion& completion =
        completions.emplace_back(Completion{.id = oldest.id, .outcome = Outcome::done, .error = {}});
    if (oldest.conditional) {
      const auto changed = records_.changed_bytes(*oldest.conditional);
      completion.changed = changed.has_value();
      completion.changed_bytes = changed.value_or(0);
    }
    if (oldest.learned) records_.learned(*oldest.learned, oldest.id);
    if (oldest.compared) completion.changed = records_.end_compare(*oldest.compared);
    link.events->spare.push_back(oldest.done);
    link.in_flight.pop_front();
  }
  return {};
}

std::uint64_t NearTier::next_wanted() const {
  if (source_full()) return 0;
  for (const std::uint64_t page_bytes : awaited_) {
    if (pool_.can_create(page_bytes)) return page_bytes;
  }
  for (const auto& [page_bytes, count] : expected_) {
    if (pool_.can_create(page_bytes) && pool_.frames(page_bytes) < count) return page_bytes;
  }
  return 0;
}

bool NearTier::grow_one() {
  std::unique_lock lock(mutex_);
  const std::uint64_t page_bytes = growth_error_ ? 0 : next_wanted();
  if (page_bytes != 0) (void)make_wanted(lock, page_bytes);
  return page_bytes != 0;
}

void NearTier::grow() {
  // Handles belong to no context, but the driver requires a current one for host mappings.
  (void)(*config_.driver)->cuCtxSetCurrent(config_.devices.front().context);
  MemoryReserve reserve;
  std::unique_lock lock(mutex_);
  for (;;) {
    (void)reserve.refill();
    std::uint64_t page_bytes = 0;
    changed_.wait(lock, [&] { return stopping_ || (!growth_error_ && (page_bytes = next_wanted()) != 0); });
    if (stopping_) return;
    const bool awaited = make_wanted(lock, page_bytes);
    lock.unlock();
    if (awaited) config_.on_ready();
    if (on_host()) std::this_thread::sleep_for(kGrowthPause);
    lock.lock();
  }
}

// True if somebody may wait: the slot was asked for, or growth failed.
bool NearTier::make_wanted(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes) {
  const bool made = make_one(lock, page_bytes);
  // Repeated requests count as one slot: a caller that finds none asks again.
  const bool awaited = awaited_.erase(page_bytes) != 0;
  if (growth_error_ && !awaited) {
    // No caller waits for this slot: log once, and stop growing ahead until the next expect().
    VMEM_LOG_WARN("{}: cannot create slots ahead of need: {}", config_.name, growth_error_->message);
    growth_error_.reset();
    expected_.clear();
  }
  return awaited || !made;
}

bool NearTier::make_one(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes) {
  auto planned = pool_.plan(page_bytes);
  if (!planned || !*planned) {
    if (!planned) growth_error_ = planned.error();
    return false;
  }
  const std::uint64_t budget = budgets_;
  lock.unlock();
  auto made = pool_.make(**planned);
  lock.lock();
  if (!made) {
    const bool out_of_memory = made.error().status == VMEM_ERROR_OUT_OF_MEMORY;
    // A source may have memory later, so its pool keeps its budget.
    pool_.abandon(**planned, out_of_memory && config_.source == nullptr);
    if (out_of_memory && config_.source != nullptr && budget == budgets_)
      full_until_ = std::chrono::steady_clock::now() + kSourcePause;
    if (!out_of_memory) growth_error_ = made.error();
    return false;
  }
  pool_.give_back(pool_.adopt(**planned), 0, nullptr);
  return true;
}

}  // namespace vmem::tiers
