#include "runtime/runtime.hpp"

#include <cstdio>
#include <utility>

#include "base/clock.hpp"
#include "base/memory_reserve.hpp"
#include "gpu/call_times.hpp"
#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"
#include "runtime/assembly/tracing.hpp"
#include "topology/known.hpp"

namespace vmem::runtime {

namespace {

std::uint64_t now_us() { return SteadyClock().now_us(); }

// Still found from here, so that it does not count as a leak.
void keep_for_ever(std::unique_ptr<Devices> devices) {
  static auto* const kept = new std::vector<std::unique_ptr<Devices>>;
  kept->push_back(std::move(devices));
}

}  // namespace

Runtime::Runtime(Options options, std::shared_ptr<const gpu::Driver> driver)
    : options_(std::move(options)), driver_(std::move(driver)) {}

Result<std::unique_ptr<Runtime>> Runtime::create(const Options& options) {
  VMEM_ASSIGN(auto driver, gpu::Driver::load(options.driver));
  if (options.call_times) driver = gpu::with_call_times(driver);
  return create(options, std::move(driver));
}

Result<std::unique_ptr<Runtime>> Runtime::create(const Options& options, std::shared_ptr<const gpu::Driver> driver) {
  std::unique_ptr<Runtime> runtime(new Runtime(options, std::move(driver)));
  VMEM_TRY(runtime->start());
  return runtime;
}

Status Runtime::start() {
  VMEM_ASSIGN(devices_, Devices::open(driver_, options_.devices));
  VMEM_ASSIGN(reserved_, ReservedSpace::reserve(driver_, options_));
  std::vector<migration::StreamTable::Device> stream_devices;
  for (const auto& device : *devices_) stream_devices.push_back({device->handle, device->context});
  using Timing = migration::StreamTable::Timing;
  streams_ = std::make_unique<migration::StreamTable>(driver_, std::move(stream_devices),
                                                      options_.trace.empty() ? Timing::off : Timing::on);
  slots_ = std::make_unique<ThreadSlots>(*devices_);
  VMEM_ASSIGN(topology_, topology::known_topology(*driver_, options_.topology));
  const auto wake = [this] { waker_.wake(); };
  VMEM_ASSIGN(stack_, MemoryStack::start(options_, driver_, *devices_, topology_, wake));
  const std::vector<FoundLender> found =
      stack_->remote() != nullptr ? stack_->remote()->lenders_on_this_host() : std::vector<FoundLender>{};
  VMEM_ASSIGN(peers_, PeerMemory::start(options_, driver_, *devices_, wake));
  peers_->borrow_from(found, topology_);
  if (stack_->remote() != nullptr && stack_->remote()->member() != nullptr) {
    SliceGrants grants = slice_grants();
    grants.grant = [this](std::uint32_t first, std::uint32_t count) { return space().grant(first, count); };
    grants.retire = [this](std::uint32_t first, std::uint32_t count) { space().retire(first, count); };
    VMEM_TRY(grant_slices(grants, 1));
  }
  VMEM_TRY(start_mover());
  backing_ = std::make_unique<Backing>(options_, *devices_, space(), *mover_, *streams_, *slots_);
  VMEM_ASSIGN(small_, Suballocator::create(backing_->slabs, backing_->work, space().base(), space().bytes()));
  interface_ = std::make_unique<Interface>(*this);
  start_publishing();
  return {};
}

// Without the address space: the mover changes it as soon as there is one.
SliceGrants Runtime::slice_grants() {
  Member& member = *stack_->remote()->member();
  return {.granules = std::uint32_t(member.parameters().slice_bytes >> pagetable::kGranuleShift),
          .take = [&member](std::uint32_t count) { return member.take_slices(count); },
          .holds = [&member](cluster::Slice slice) { return member.holds(slice); },
          .grant = {},
          .retire = {}};
}

void Runtime::start_publishing() {
  Remote* const remote = stack_->remote();
  if (remote == nullptr || remote->joint() == nullptr) return;
  publishing_ = std::make_unique<Publishing>(Publishing::Parts{.devices = *devices_,
                                                               .space = space(),
                                                               .mover = *mover_,
                                                               .regions = backing_->regions,
                                                               .slots = *slots_,
                                                               .remote = *remote});
  SliceGrants grants = slice_grants();
  grants.grant = [this](std::uint32_t first, std::uint32_t count) {
    migration::GrantRequest request;
    request.first = first;
    request.count = count;
    return mover_->call(request);
  };
  grants.retire = [this](std::uint32_t first, std::uint32_t count) {
    migration::RetireRequest request;
    request.first = first;
    request.count = count;
    (void)mover_->call(request);  // an error: the mover has ended
  };
  const std::uint64_t slice = remote->member()->parameters().slice_bytes;
  backing_->regions.on_full([grants = std::move(grants), slice](std::uint64_t bytes) {
    return grant_slices(grants, std::uint32_t((bytes + slice - 1) / slice));
  });
}

Runtime::Interface::Interface(Runtime& runtime)
    : addresses(runtime.space(), *runtime.small_, runtime.devices()),
      readiness(runtime.driver(), *runtime.mover_),
      allocations(runtime.devices(), runtime.space(), runtime.backing_->regions, runtime.backing_->freed,
                  runtime.backing_->arena, *runtime.small_, *runtime.slots_, runtime.stack_->files()),
      hit_path({.driver = runtime.driver(),
                .space = runtime.space(),
                .mover = *runtime.mover_,
                .streams = *runtime.streams_,
                .slots = *runtime.slots_,
                .addresses = addresses,
                .readiness = readiness,
                .recorder = runtime.recorder_.get()}),
      copies({.driver = runtime.driver(),
              .devices = runtime.devices(),
              .space = runtime.space(),
              .mover = *runtime.mover_,
              .slots = *runtime.slots_,
              .small = *runtime.small_,
              .addresses = addresses,
              .hit_path = hit_path}),
      requests({.devices = runtime.devices(),
                .space = runtime.space(),
                .mover = *runtime.mover_,
                .small = *runtime.small_,
                .addresses = addresses}),
      blocks({.driver = runtime.driver(),
              .devices = runtime.devices(),
              .space = runtime.space(),
              .mover = *runtime.mover_,
              .regions = runtime.backing_->regions,
              .freed = runtime.backing_->freed,
              .arena = runtime.backing_->arena,
              .small = *runtime.small_,
              .work = runtime.backing_->work,
              .addresses = addresses,
              .allocations = allocations}),
      launches({.driver = runtime.driver(),
                .space = runtime.space(),
                .mover = *runtime.mover_,
                .streams = *runtime.streams_,
                .slots = *runtime.slots_,
                .small = *runtime.small_,
                .readiness = readiness,
                .gate = runtime.backing_->gate,
                .recorder = runtime.recorder_.get(),
                .traced_epoch = runtime.options_.trace_epoch},
               runtime.options_.strict ? Launches::Order::strict : Launches::Order::concurrent,
               runtime.options_.drained ? 0 : runtime.options_.window) {}

// Callers end before what they call. A failure means a lost context, whose handles are gone with
// it.
Runtime::~Runtime() {
  const MemoryReserve reserve;  // destruction must not fail
  publishing_.reset();
  interface_.reset();
  small_.reset();
  backing_.reset();
  if (peers_) peers_->stop_borrowing();
  if (mover_ != nullptr) mover_->stop();
  if (reserved_) reserved_->unmap_pages();
  waker_.end();
  recorder_.reset();
  // The threads of a quarantined tier may be in the devices' contexts.
  const bool quarantined = stack_ && stack_->quarantine();
  peers_.reset();
  stack_.reset();
  streams_.reset();
  reserved_.reset();
  if (quarantined) keep_for_ever(std::move(devices_));
  devices_.reset();
  report_call_times();
}

void Runtime::report_call_times() const {
  if (options_.call_times) (void)std::fputs(gpu::words_of(gpu::take_call_times()).c_str(), stderr);
}

Status Runtime::start_mover() {
  VMEM_ASSIGN(migration::MoverConfig config, mover_config());
  if (!options_.trace.empty()) {
    VMEM_ASSIGN(recorder_, start_trace(options_, *devices_, config.devices, topology_, space().base()));
  }
  config.recorder = recorder_.get();
  mover_ = &waker_.take(std::make_unique<migration::Mover>(std::move(config)));
  streams_->on_backlog([this] { waker_.wake(); });
  mover_->start();
  return {};
}

void Runtime::stop() {
  if (publishing_) publishing_->leave();  // while the mover can still give pages to others
  mover_->stop();
  if (recorder_) recorder_->finish();
}

Result<migration::MoverConfig> Runtime::mover_config() {
  migration::MoverConfig config;
  config.driver = driver_;
  config.space = &space();
  config.threads = &slots_->registry();
  config.streams = streams_.get();
  config.backing = &stack_->host();
  config.backing_ahead_bytes = options_.host_ahead_bytes;
  config.in_place = &stack_->host();
  config.files = &stack_->sources();
  config.published_cache_bytes = options_.published_cache.of(stack_->host().usage().budget_bytes);
  VMEM_ASSIGN(config.devices, mover_devices());
  config.peer_tiers = peers_->tiers();
  config.loans = peers_->loans();
  migration::SecondChanceOptions policy;
  policy.prefetch_pages = options_.prefetch_pages;
  for (const auto& device : config.devices) policy.hbm_bytes.push_back(device.hbm_bytes);
  config.policy = migration::make_look_ahead_policy({policy.hbm_bytes}, migration::make_second_chance_policy(policy));
  config.spill = stack_->below_host();
  if (config.spill != nullptr) {
    config.spill_policy =
        migration::make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {stack_->host().usage().budget_bytes}});
  }
  config.page_bytes = options_.page_bytes;
  config.acquire_wait_us = options_.acquire_wait_us;
  config.call_wait_us = options_.call_wait_us;
  config.protect = options_.protect;
  config.only_asked = options_.strict || options_.drained;
  const bool finds_errors = options_.strict || options_.drained || options_.protect;
  config.tries_in_place = options_.try_in_place && !finds_errors;
  // Beside others in a page, the errors that these options are to find would go unseen.
  config.shares_pages = options_.share_pages && !finds_errors;
  config.now_us = now_us;
  return config;
}

Result<std::vector<migration::MoverDevice>> Runtime::mover_devices() const {
  std::vector<migration::MoverDevice> result;
  for (const auto& home : *devices_) {
    migration::MoverDevice device{home->handle, home->context, 0, 0, {}, {}};
    for (std::size_t i = 0; i < devices_->size(); ++i) {
      const Device& other = (*devices_)[i];
      int can = &other == home.get() ? 1 : 0;
      if (can == 0) (void)(*driver_)->cuDeviceCanAccessPeer(&can, other.handle, home->handle);
      device.peers |= std::uint32_t(can != 0) << i;
    }
    device.lenders = peers_->reachable_from(result.size(), topology_);
    device.copiers = peers_->copiers_of(result.size());
    VMEM_ASSIGN(device.hbm_bytes, hbm_budget(options_, *home));
    result.push_back(std::move(device));
  }
  return result;
}

// While a range is held, the memory cannot end: then nothing is left either.
Status Runtime::shut_down() {
  if (publishing_) {
    migration::EndAllRequest check;
    check.only_check = true;
    if (mover_->call(check)) publishing_->leave();
  }
  migration::EndAllRequest end;  // the suballocator's slabs are regions too
  const auto ended = mover_->call(end);
  if (!ended && ended.error().status != VMEM_ERROR_DEVICE_LOST) return ended;
  backing_->slabs.regions_ended();
  return {};
}

// Closes all three even if one fails: afterwards the handle may be invalid.
Status Runtime::close_stream(vmem_stream stream) {
  Status result = small_->close_stream(stream);
  if (auto closed = blocks().close_stream(stream); result) result = std::move(closed);
  if (auto closed = streams_->close_stream(stream); result) result = std::move(closed);
  return result;
}

Status Runtime::statistics(vmem_statistics& out) {
  migration::StatisticsRequest request;
  VMEM_TRY(mover_->call(request));
  out = request.statistics;
  stack_->add_to(out);
  out.device_count = int(devices_->size());
  out.emulated = driver_->emulated() ? 1 : 0;
  out.space_bytes = space().bytes();
  out.allocated_bytes += small_->live_bytes() + backing_->arena.live_bytes();
  out.metadata_bytes += small_->metadata_bytes();
  out.acquires = slots_->registry().acquires();
  return {};
}

bool Runtime::report_loss(const Error& error) {
  migration::LossReport report(error);
  return !mover_->call(report);
}

}  // namespace vmem::runtime
