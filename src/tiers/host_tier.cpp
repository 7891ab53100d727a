#include "tiers/host_tier.hpp"

#include "base/log.hpp"

namespace vmem::tiers {
namespace {

FramePool::Config pool_config(const HostTier::Config& config) {
  FramePool::Config pool;
  pool.driver = config.driver;
  pool.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {config.numa_node}};
  pool.accessors.push_back(pool.location);
  for (const auto& device : config.devices) pool.accessors.push_back({CU_MEM_LOCATION_TYPE_DEVICE, {device.ordinal}});
  pool.budget_bytes = config.budget_bytes;
  pool.name = "pinned host memory";
  return pool;
}

}  // namespace

HostTier::HostTier(Config config) : config_(std::move(config)), pool_(pool_config(config_)) {}

Result<std::unique_ptr<HostTier>> HostTier::create(Config config) {
  std::unique_ptr<HostTier> tier(new HostTier(std::move(config)));
  tier->devices_.resize(tier->config_.devices.size());
  for (std::size_t i = 0; i < tier->devices_.size(); ++i) {
    tier->devices_[i].context = tier->config_.devices[i].context;
    VMEM_TRY(tier->create_streams(tier->devices_[i]));
  }
  tier->grower_ = std::thread([raw = tier.get()] { raw->grow(); });
  return tier;
}

HostTier::~HostTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (grower_.joinable()) grower_.join();
  // Failures here mean a lost context, whose handles are gone with it.
  const auto& driver = *config_.driver;
  for (PerDevice& device : devices_) {
    for (Link* link : {&device.load, &device.store}) {
      if (link->stream == nullptr) continue;
      (void)driver->cuStreamSynchronize(link->stream);
      for (const InFlight& transfer : link->in_flight) (void)driver->cuEventDestroy(transfer.done);
      (void)driver->cuStreamDestroy(link->stream);
    }
    for (CUevent event : device.spare_events) (void)driver->cuEventDestroy(event);
  }
}

Status HostTier::create_streams(PerDevice& device) {
  const auto& driver = *config_.driver;
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(device.context), "cuCtxPushCurrent"));
  CUresult result = driver->cuStreamCreate(&device.load.stream, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS) result = driver->cuStreamCreate(&device.store.stream, CU_STREAM_NON_BLOCKING);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  return driver.check(result, "cuStreamCreate");
}

TierUsage HostTier::usage() const {
  const std::lock_guard lock(mutex_);
  return {pool_.budget_bytes(), pool_.used_bytes(), pool_.free_bytes()};
}

void HostTier::expect(std::uint64_t page_bytes, std::uint64_t count) {
  const std::lock_guard lock(mutex_);
  expected_[page_bytes] = count;
  changed_.notify_all();
}

Result<SlotGrant> HostTier::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto slot = pool_.take_free(page_bytes)) return SlotGrant{Grant::granted, *slot};
  if (growth_error_) return std::unexpected(*std::exchange(growth_error_, std::nullopt));
  if (!pool_.can_create(page_bytes)) {
    VMEM_ASSIGN(const bool room, pool_.make_room(page_bytes, [](std::uint64_t) { return false; }, [](void*) {}));
    if (!room) return SlotGrant{Grant::full, 0};
  }
  asked_.insert(page_bytes);
  changed_.notify_all();
  return SlotGrant{Grant::later, 0};
}

void HostTier::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  pool_.give_back(slot, 0, nullptr);
}

CUmemGenericAllocationHandle HostTier::handle(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return const_cast<FramePool&>(pool_).frame(slot).handle;
}

std::byte* HostTier::host_address(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<std::byte*>(const_cast<FramePool&>(pool_).frame(slot).window);
}

Result<CUevent> HostTier::take_event(PerDevice& device) {
  if (!device.spare_events.empty()) {
    CUevent event = device.spare_events.back();
    device.spare_events.pop_back();
    return event;
  }
  const auto& driver = *config_.driver;
  CUevent event = nullptr;
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(device.context), "cuCtxPushCurrent"));
  const CUresult result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  VMEM_TRY(driver.check(result, "cuEventCreate"));
  return event;
}

Status HostTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) VMEM_TRY(submit_one(transfer));
  return {};
}

Status HostTier::submit_one(Transfer& transfer) {
  const auto& driver = *config_.driver;
  PerDevice& device = devices_[std::size_t(transfer.device)];
  Link& link = transfer.direction == Direction::load ? device.load : device.store;
  VMEM_ASSIGN(CUevent done, take_event(device));
  if (auto queued = queue_copy(transfer, link.stream); !queued) {
    device.spare_events.push_back(done);
    return queued;
  }
  const CUresult result = driver->cuEventRecord(done, link.stream);
  if (result != CUDA_SUCCESS) {
    // The copy is queued and nothing marks its end: wait for it, so that the failure leaves nothing running.
    (void)driver->cuStreamSynchronize(link.stream);
    device.spare_events.push_back(done);
    return driver.check(result, "cuEventRecord");
  }
  transfer.id = next_id_++;
  transfer.done = done;
  link.in_flight.push_back({transfer.id, done});
  return {};
}

Status HostTier::queue_copy(const Transfer& transfer, CUstream stream) {
  const auto& driver = *config_.driver;
  for (CUevent after : transfer.after) {
    if (after != nullptr) VMEM_TRY(driver.check(driver->cuStreamWaitEvent(stream, after, 0), "cuStreamWaitEvent"));
  }
  std::byte* host = host_address(transfer.slot);
  const bool load = transfer.direction == Direction::load;
  // The driver looks up the frame with the rights of the current context's device, whatever the stream.
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(devices_[std::size_t(transfer.device)].context), "cuCtxPushCurrent"));
  const CUresult queued = load ? driver->cuMemcpyHtoDAsync(transfer.frame, host, transfer.bytes, stream)
                               : driver->cuMemcpyDtoHAsync(host, transfer.frame, transfer.bytes, stream);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  return driver.check(queued, load ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync");
}

Status HostTier::poll(std::vector<Completion>& completions) {
  for (PerDevice& device : devices_) {
    VMEM_TRY(poll_link(device, device.load, completions));
    VMEM_TRY(poll_link(device, device.store, completions));
  }
  return {};
}

Status HostTier::poll_link(PerDevice& device, Link& link, std::vector<Completion>& completions) {
  const auto& driver = *config_.driver;
  while (!link.in_flight.empty()) {
    const InFlight& oldest = link.in_flight.front();
    const CUresult result = driver->cuEventQuery(oldest.done);
    if (result == CUDA_ERROR_NOT_READY) return {};
    VMEM_TRY(driver.check(result, "cuEventQuery"));
    completions.push_back({oldest.id, Outcome::done, {}});
    device.spare_events.push_back(oldest.done);
    link.in_flight.pop_front();
  }
  return {};
}

std::uint64_t HostTier::next_wanted() const {
  for (const std::uint64_t page_bytes : asked_) {
    if (pool_.can_create(page_bytes)) return page_bytes;
  }
  for (const auto& [page_bytes, count] : expected_) {
    if (pool_.can_create(page_bytes) && pool_.frames(page_bytes) < count) return page_bytes;
  }
  return 0;
}

void HostTier::grow() {
  // Handles made here belong to no context, but the driver wants one current for host mappings.
  (void)(*config_.driver)->cuCtxSetCurrent(config_.devices.front().context);
  std::unique_lock lock(mutex_);
  for (;;) {
    std::uint64_t page_bytes = 0;
    changed_.wait(lock, [&] { return stopping_ || (!growth_error_ && (page_bytes = next_wanted()) != 0); });
    if (stopping_) return;
    const bool made = make_one(lock, page_bytes);
    // However often it was asked meanwhile, one slot was wanted; who finds none asks again.
    const bool asked = asked_.erase(page_bytes) != 0;
    if (growth_error_ && !asked) {
      // Nobody waits for it: said once, and growth ahead goes on when the mover says again what it expects.
      VMEM_LOG_WARN("cannot make host memory ahead: {}", growth_error_->message);
      growth_error_.reset();
      expected_.clear();
    }
    if (asked || !made) {
      lock.unlock();
      config_.on_ready();
      lock.lock();
    }
  }
}

bool HostTier::make_one(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes) {
  auto planned = pool_.plan(page_bytes);
  if (!planned || !*planned) {
    if (!planned) growth_error_ = planned.error();
    return false;
  }
  lock.unlock();
  auto made = pool_.make(**planned);
  lock.lock();
  if (!made) {
    const bool out_of_memory = made.error().status == VMEM_ERROR_OUT_OF_MEMORY;
    pool_.abandon(**planned, out_of_memory);
    if (!out_of_memory) growth_error_ = made.error();
    return false;
  }
  pool_.give_back(pool_.adopt(**planned), 0, nullptr);
  return true;
}

}  // namespace vmem::tiers
