#include "runtime/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "gpu/call_times.hpp"
#include "gpu/memory_location.hpp"
#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"
#include "runtime/machine.hpp"
#include "tiers/disk/thread_queue.hpp"
#include "topology/known.hpp"
#include "topology/placement.hpp"

namespace vmem::runtime {

namespace {

std::uint64_t now_us() { return SteadyClock().now_us(); }

constexpr std::uint32_t kDiskDepth = 64;  // requests of 1 MiB under way

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
  VMEM_TRY(open_devices());
  VMEM_TRY(reserve_space());
  std::vector<migration::StreamTable::Device> stream_devices;
  for (const auto& device : devices_) stream_devices.push_back({device->handle, device->context});
  streams_ = std::make_unique<migration::StreamTable>(driver_, std::move(stream_devices));
  VMEM_ASSIGN(topology_, topology::known_topology(*driver_, options_.topology));
  VMEM_TRY(start_host_tier());
  for (const LendingDevice& lender : options_.peers) VMEM_TRY(start_lender(lender));
  for (const LentDevice& lent : options_.lend) VMEM_TRY(start_lending(lent));
  VMEM_TRY(start_gds());
  VMEM_TRY(start_disk_tier());
  if (!options_.remote.empty()) VMEM_TRY(start_remote_tier());
  start_file_tier();
  VMEM_TRY(start_mover());
  VMEM_ASSIGN(small_, Suballocator::create(*this, space_->base(), space_->bytes()));
  freed_ = std::make_unique<BlockCache>(static_cast<SlabSource&>(*this));
  return {};
}

Runtime::~Runtime() {
  const MemoryReserve reserve;  // an end cannot fail
  // In the order of use: whoever calls others goes first. Failures mean a lost context, whose handles are gone with it.
  small_.reset();
  for (const auto& lender : lenders_) {
    if (lender->borrower) lender->borrower->stop();
  }
  if (mover_) mover_->stop();
  unmap_what_is_left();
  // From here on nobody wakes it. It ends without the lock: it waits for threads that would wake it.
  std::unique_ptr<migration::Mover> mover;
  {
    const std::lock_guard lock(mover_life_);
    mover = std::move(mover_);
  }
  mover.reset();
  below_.reset();
  remote_.reset();
  const bool quarantined = quarantine();
  files_.reset();
  disk_.reset();
  gds_.reset();
  for (auto& lender : lenders_) {
    lender->memory.reset();
    lender->borrower.reset();
  }
  lending_out_.clear();
  host_.reset();
  streams_.reset();
  const auto& driver = *driver_;
  if (reserved_ != 0) (void)driver->cuMemAddressFree(reserved_, reserved_bytes_);
  // A reader's threads may be in the devices' contexts, and the frames that they read into are theirs.
  for (const auto& lender : lenders_) close(lender->device);
  for (const auto& device : devices_) {
    if (!quarantined) close(*device);
  }
  tell_call_times();
}

// The system may yet write to the memory of requests that do not end. With it stays what they use: the tiers, with their threads
// and their reader.
bool Runtime::quarantine() {
  const bool disk = disk_ && disk_->quarantined(), files = files_ && files_->quarantined();
  if (!disk && !files) return false;
  if (disk) (void)disk_.release();
  if (files) (void)files_.release();
  (void)host_.release();
  return true;
}

void Runtime::tell_call_times() const {
  if (options_.call_times) (void)std::fputs(gpu::words_of(gpu::take_call_times()).c_str(), stderr);
}

void Runtime::close(Device& device) const {
  const auto& driver = *driver_;
  if (device.io != nullptr) (void)driver->cuStreamDestroy(device.io);
  if (device.context != nullptr) (void)driver->cuDevicePrimaryCtxRelease(device.handle);
}

// After a loss the mover leaves the pages as they are. What they map must not outlive us: frames would stay taken, and the
// reservation could not be given back.
void Runtime::unmap_what_is_left() {
  if (!space_) return;
  for (pagetable::RegionId id{1}; pagetable::Region* region = space_->find(id); ++id.value) {
    for (std::uint32_t i = 0; region->pages && i < region->page_count; ++i) {
      if (region->pages[i].mapped == pagetable::Mapped::nothing) continue;
      (void)(*driver_)->cuMemUnmap(space_->address_of(region->granule_of(i)), region->page_bytes());
    }
  }
}

Status Runtime::open_devices() {
  const auto& driver = *driver_;
  int present = 0;
  VMEM_TRY(driver.check(driver->cuDeviceGetCount(&present), "cuDeviceGetCount"));
  if (present == 0) return fail(VMEM_ERROR_NO_DRIVER, "the CUDA driver sees no GPU; see `vmem doctor`");
  std::vector<int> ordinals = options_.devices;
  for (int i = 0; i < present && options_.devices.empty(); ++i) ordinals.push_back(i);
  if (ordinals.size() > 32) ordinals.resize(32);
  for (const int ordinal : ordinals) {
    if (ordinal >= present) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("--devices names device {}, and there are {} (0 to {})", ordinal, present, present - 1));
    }
    VMEM_TRY(open_device(ordinal, *devices_.emplace_back(std::make_unique<Device>())));
  }
  return {};
}

Status Runtime::open_device(int ordinal, Device& device) const {
  const auto& driver = *driver_;
  device.ordinal = ordinal;
  VMEM_TRY(driver.check(driver->cuDeviceGet(&device.handle, ordinal), "cuDeviceGet"));
  int managed = 0;
  VMEM_TRY(driver.check(
      driver->cuDeviceGetAttribute(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device.handle),
      "cuDeviceGetAttribute"));
  if (managed == 0) {
    return fail(
        VMEM_ERROR_UNSUPPORTED,
        fmt::format("device {} has no virtual memory management (cuMemMap); vmem needs a GPU and driver that do",
                    ordinal));
  }
  VMEM_TRY(driver.check(driver->cuDevicePrimaryCtxRetain(&device.context, device.handle), "cuDevicePrimaryCtxRetain"));
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(device.context), "cuCtxPushCurrent"));
  const CUresult created = driver->cuStreamCreate(&device.io, CU_STREAM_NON_BLOCKING);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  return driver.check(created, "cuStreamCreate");
}

Status Runtime::reserve_space() {
  const auto& driver = *driver_;
  const std::uint64_t align = std::uint64_t{256} << 20;
  const CUresult result = driver->cuMemAddressReserve(&reserved_, options_.space_bytes, align, options_.base, 0);
  if (auto reserved = driver.check(result, "cuMemAddressReserve"); !reserved) {
    if (reserved.error().status == VMEM_ERROR_DEVICE_LOST) return reserved;
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("cannot reserve {} of addresses: {}; lower --space, or choose another --base",
                            format_bytes(options_.space_bytes), reserved.error().message),
                result);
  }
  reserved_bytes_ = options_.space_bytes;
  if (reserved_ != options_.base) {
    VMEM_LOG_INFO("the address space is at {:#x}, not at {:#x}: something else is there", reserved_, options_.base);
  }
  VMEM_ASSIGN(space_, pagetable::AddressSpace::create(reserved_, reserved_bytes_));
  return {};
}

Result<Runtime::FreeMemory> Runtime::free_memory(const Device& device) const {
  const auto& driver = *driver_;
  std::size_t free_bytes = 0, total_bytes = 0;
  VMEM_TRY(driver.check(driver->cuCtxPushCurrent(device.context), "cuCtxPushCurrent"));
  const CUresult asked = driver->cuMemGetInfo(&free_bytes, &total_bytes);
  CUcontext popped = nullptr;
  (void)driver->cuCtxPopCurrent(&popped);
  VMEM_TRY(driver.check(asked, "cuMemGetInfo"));
  return FreeMemory{free_bytes, total_bytes};
}

Result<std::uint64_t> Runtime::hbm_budget(const Device& device) const {
  VMEM_ASSIGN(const FreeMemory memory, free_memory(device));
  const auto [free_bytes, total_bytes] = memory;
  const std::uint64_t headroom =
      options_.hbm_bytes ? 0 : std::min<std::uint64_t>(options_.headroom_bytes, free_bytes / 4);
  const std::uint64_t budget = whole_granules(options_.hbm_bytes.value_or(free_bytes - headroom));
  if (budget > free_bytes) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--hbm {} asked for, device {} has {} free of {}; lower --hbm or free GPU memory",
                            format_bytes(budget), device.ordinal, format_bytes(free_bytes), format_bytes(total_bytes)));
  }
  if (budget < kSmallestHbm) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("an HBM budget of {} on device {} is too small; {} is the least", format_bytes(budget),
                            device.ordinal, format_bytes(kSmallestHbm)));
  }
  if (options_.page_bytes && *options_.page_bytes > budget / kPagesInHbm) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--page {} is more than an eighth of the HBM budget of {}",
                                                       format_bytes(*options_.page_bytes), format_bytes(budget)));
  }
  return budget;
}

Result<std::uint64_t> Runtime::host_budget() const {
  const std::uint64_t available = available_host_bytes();
  const std::uint64_t budget = whole_granules(options_.host_bytes.value_or(available / 2));
  if (options_.host_bytes && *options_.host_bytes > total_host_bytes()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--host {} asked for, the machine has {} in all ({} available now)", format_bytes(budget),
                            format_bytes(total_host_bytes()), format_bytes(available)));
  }
  if (budget < kSmallestHost) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("a host budget of {} is too small; {} is the least",
                                                       format_bytes(budget), format_bytes(kSmallestHost)));
  }
  return budget;
}

Status Runtime::start_host_tier() {
  const auto& driver = *driver_;
  int supported = 0;
  VMEM_TRY(driver.check(
      driver->cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                   devices_.front()->handle),
      "cuDeviceGetAttribute"));
  if (supported == 0) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                "the driver cannot make host memory handles (HOST_NUMA virtual memory management); see `vmem doctor`");
  }
  std::vector<int> ordinals;
  for (const auto& device : devices_) ordinals.push_back(device->ordinal);
  tiers::NearTier::Config config;
  config.driver = driver_;
  for (const auto& device : devices_) config.devices.push_back({device->context, device->handle});
  config.location = gpu::on_host(topology::host_node(topology_, ordinals).value_or(0));
  config.name = "host";
  VMEM_ASSIGN(config.budget_bytes, host_budget());
  config.on_ready = [this] { wake_mover(); };
  VMEM_ASSIGN(host_, tiers::NearTier::create(std::move(config)));
  return {};
}

// Libcufile is loaded with the first file, unless it was asked for: then its absence stops the start.
Status Runtime::start_gds() {
  if (options_.gds == Gds::off) return {};
  tiers::GdsReader::Config config;
  config.driver = driver_;
  config.accept = options_.gds == Gds::on ? gpu::CuFile::Accept::any : gpu::CuFile::Accept::direct;
  for (const auto& device : devices_) config.devices.push_back({device->context, device->handle});
  gds_ = std::make_shared<tiers::GdsReader>(std::move(config));
  if (options_.gds != Gds::on) return {};
  const Status started = gds_->start();
  if (started || started.error().status != VMEM_ERROR_UNSUPPORTED) return started;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--gds on: {}; give auto to go on without it", started.error().message));
}

Status Runtime::start_disk_tier() {
  tiers::DiskTier::Config config;
  // Checked with or without files: a bad option stops the start.
  VMEM_ASSIGN(config.compression, tiers::compression_config(options_.compress));
  if (options_.nvme.empty()) return {};
  config.directories = options_.nvme;
  config.make_queue = [poll = options_.nvme_poll](const std::vector<int>& files) {
    return tiers::make_io_queue({.files = files, .depth = kDiskDepth, .poll = poll});
  };
  config.workers = tiers::DiskTier::default_workers();
  config.answer_wait = std::chrono::microseconds(options_.call_wait_us);
  config.frame_reader = gds_;
  config.on_ready = [this] { wake_mover(); };
  VMEM_ASSIGN(disk_, tiers::DiskTier::create(std::move(config)));
  VMEM_LOG_INFO("files for pages: {} in {} directories through {}", format_bytes(disk_->usage().budget_bytes),
                options_.nvme.size(), disk_->describe());
  return {};
}

Status Runtime::start_remote_tier() {
  VMEM_ASSIGN(remote_, Remote::start(options_, [this] { wake_mover(); }));
  VMEM_LOG_INFO("pages on other nodes: {}", remote_->tier().describe());
  return {};
}

// Other nodes' memory before this one's disks.
tiers::Tier* Runtime::tier_below() {
  if (!remote_) return disk_.get();
  if (!disk_) return &remote_->tier();
  below_ = std::make_unique<tiers::StackedTier>(std::vector<tiers::Tier*>{&remote_->tier(), disk_.get()});
  return below_.get();
}

// Its thread and its queue begin with the first mapping.
void Runtime::start_file_tier() {
  tiers::FileTier::Config config;
  config.make_queue = [] { return tiers::make_io_queue({.files = {}, .depth = kDiskDepth}); };
  config.on_ready = [this] { wake_mover(); };
  config.frame_reader = gds_;
  config.answer_wait = std::chrono::microseconds(options_.call_wait_us);
  files_ = std::make_unique<tiers::FileTier>(std::move(config));
}

std::vector<migration::MoverDevice> Runtime::mover_devices() const {
  std::vector<migration::MoverDevice> result;
  for (const auto& home : devices_) {
    migration::MoverDevice device{home->handle, home->context, 0, 0};
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      int can = devices_[i].get() == home.get() ? 1 : 0;
      if (can == 0) (void)(*driver_)->cuDeviceCanAccessPeer(&can, devices_[i]->handle, home->handle);
      device.peers |= std::uint32_t(can != 0) << i;
    }
    result.push_back(device);
  }
  return result;
}

Status Runtime::start_mover() {
  migration::MoverConfig config;
  config.driver = driver_;
  config.space = space_.get();
  config.threads = threads_.get();
  config.streams = streams_.get();
  config.backing = host_.get();
  config.in_place = host_.get();
  config.files = files_.get();
  config.devices = mover_devices();
  for (const auto& lender : lenders_) config.lent.push_back(lent_memory(*lender));
  for (const LendingOut& out : lending_out_) config.lent_out.push_back(lent_out(out));
  for (std::size_t device = 0; device < devices_.size(); ++device)
    config.devices[device].lenders = lenders_of(devices_[device]->ordinal, device);
  migration::SecondChanceOptions policy;
  policy.prefetch_pages = options_.prefetch_pages;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    VMEM_ASSIGN(config.devices[i].hbm_bytes, hbm_budget(*devices_[i]));
    policy.hbm_bytes.push_back(config.devices[i].hbm_bytes);
  }
  config.policy = migration::make_look_ahead_policy({policy.hbm_bytes}, migration::make_second_chance_policy(policy));
  config.spill = tier_below();
  if (config.spill != nullptr) {
    config.spill_policy =
        migration::make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {host_->usage().budget_bytes}});
  }
  config.page_bytes = options_.page_bytes;
  config.acquire_wait_us = options_.acquire_wait_us;
  config.call_wait_us = options_.call_wait_us;
  config.protect = options_.protect;
  config.only_asked = options_.strict || options_.drained;
  config.now_us = now_us;
  {
    const std::lock_guard lock(mover_life_);
    mover_ = std::make_unique<migration::Mover>(std::move(config));
  }
  streams_->on_backlog([this] { wake_mover(); });
  mover_->start();
  return {};
}

// From the host tier's own thread, which begins before the mover and ends after it.
void Runtime::wake_mover() {
  const std::lock_guard lock(mover_life_);
  if (mover_) mover_->poke();
}

Status Runtime::shut_down() {
  migration::EndAllRequest end;  // the suballocator's slabs are regions like others
  const auto ended = mover_->call(end);
  if (!ended && ended.error().status != VMEM_ERROR_DEVICE_LOST) return ended;
  ended_ = true;
  return {};
}

// ---- addresses ----

Result<pagetable::Region*> Runtime::live_region(std::uintptr_t address) const {
  if (!space_->contains(address)) {
    return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} is not vmem memory, which lies from {:#x} to {:#x}",
                                                        address, space_->base(), space_->base() + space_->bytes()));
  }
  pagetable::Region* region = space_->region_at(space_->granule_at(address));
  if (region == nullptr || region->state.load(std::memory_order_seq_cst) != pagetable::RegionState::live) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is in no live allocation: it was freed, or never allocated", address));
  }
  return region;
}

Result<Runtime::Located> Runtime::locate(const void* pointer, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(pagetable::Region* const region, live_region(address));
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a range of 0 bytes at {:#x}", address));
  std::uintptr_t base = base_of(*region);
  std::uint64_t size = region->bytes;
  if (region->shared) {
    const auto block = small_->find(address);
    if (!block)
      return fail(VMEM_ERROR_INVALID_POINTER,
                  fmt::format("{:#x} is in no live allocation: it was freed, or never allocated", address));
    base = block->base;
    size = block->bytes;
  }
  const std::uint64_t offset = address - base;
  if (address < base) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is before the mapping of {} bytes at {:#x}", address, size, base));
  }
  if (offset >= size) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is past the end of the allocation of {} bytes at {:#x}", address, size, base));
  }
  if (bytes > size - offset) {
    return fail(VMEM_ERROR_INVALID_RANGE,
                fmt::format("{} bytes at {:#x} leave the allocation of {} bytes at {:#x}", bytes, address, size, base));
  }
  const std::uint32_t first = region->page_at(space_->granule_at(address));
  const std::uint32_t last = region->page_at(space_->granule_at(address + bytes - 1));
  return Located{region, first, last - first + 1};
}

Result<int> Runtime::device_index(int ordinal) const {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i]->ordinal == ordinal) return int(i);
  }
  std::string known;
  for (const auto& device : devices_) known += fmt::format("{}{}", known.empty() ? "" : ", ", device->ordinal);
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("device {} is not in use by vmem; in use: {}", ordinal, known));
}

// ---- allocation ----

Result<void*> Runtime::allocate(std::size_t bytes, int device, vmem_stream stream) {
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, "0 bytes asked for; the least is 1");
  VMEM_ASSIGN(const int index, device_index(device));
  if (bytes > space_->bytes()) {
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("{} bytes asked for, the address space has {}; raise --space", bytes, space_->bytes()));
  }
  if (bytes <= Suballocator::kLargestBytes) {
    VMEM_ASSIGN(const std::uintptr_t block, small_->allocate(index, bytes, stream));
    return reinterpret_cast<void*>(block);
  }
  auto region = allocate_region(bytes, index, RegionKind::declared);
  // What the suballocator keeps for later may be what is missing.
  if (!region && region.error().status == VMEM_ERROR_OUT_OF_MEMORY && release_all_freed() && small_->trim())
    region = allocate_region(bytes, index, RegionKind::declared);
  if (!region) return std::unexpected(std::move(region).error());
  return reinterpret_cast<void*>(space_->address_of((*region)->first.index));
}

Result<pagetable::Region*> Runtime::allocate_region(std::size_t bytes, int device, RegionKind kind) {
  migration::AllocateRequest request;
  request.bytes = bytes;
  request.device = device;
  request.shared = kind == RegionKind::shared;
  request.undeclared = kind == RegionKind::undeclared;
  return make_region(request);
}

Result<pagetable::Region*> Runtime::make_region(migration::AllocateRequest& request) {
  VMEM_TRY(mover_->call(request));
  if (!options_.drained) return request.region;
  if (auto settled = settle(*request.region); !settled) {
    migration::FreeRequest unused;
    unused.region = request.region;
    unused.first_granule = request.region->first.index;
    (void)mover_->call(unused);  // nothing has used it
    return std::unexpected(settled.error());
  }
  return request.region;
}

Result<void*> Runtime::map_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes, int device) {
  migration::AllocateRequest request;
  VMEM_ASSIGN(request.device, device_index(device));
  VMEM_ASSIGN(request.source, files_->map(path, offset, bytes));
  VMEM_ASSIGN(const pagetable::Region* const region, make_region(request));
  return reinterpret_cast<void*>(base_of(*region));
}

Status Runtime::free(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(pagetable::Region* const region, live_region(address));
  if (region->shared) {
    VMEM_TRY(refuse_held_block(address));
    return small_->free(address, stream);
  }
  const std::uintptr_t base = base_of(*region);
  if (address != base) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is inside the allocation at {:#x}; free takes the address that {} gave", address,
                            base, region->read_only ? "vmem_map_file" : "malloc"));
  }
  return free_region(*region, space_->granule_at(address), stream);
}

// Of small allocations only the calling thread's own holds are known one by one: the mover sees pages.
Status Runtime::refuse_held_block(std::uintptr_t base) {
  const pagetable::ThreadSlot* const slot = known_slot();
  if (slot == nullptr || slot->held() == 0) return {};
  const auto block = small_->find(base);
  if (!block || block->base != base || !slot->holds_within(base, block->bytes)) return {};
  return fail(VMEM_ERROR_IN_USE, fmt::format("the allocation at {:#x} is still acquired; release it first", base));
}

Status Runtime::free_region(pagetable::Region& region, std::uint32_t first_granule, vmem_stream stream) {
  VMEM_ASSIGN(migration::StreamRecord* const record, streams_->find(stream));
  VMEM_TRY(check_device(*record));
  migration::FreeRequest request;
  request.region = &region;
  request.first_granule = first_granule;
  request.last = record->open_stamp();
  VMEM_TRY(streams_->close_epoch(*record));
  return mover_->call(request);
}

Result<std::uintptr_t> Runtime::allocate_slabs(int device, std::size_t bytes) {
  auto region = allocate_region(bytes, device, RegionKind::shared);
  if (!region && region.error().status == VMEM_ERROR_OUT_OF_MEMORY && release_all_freed())
    region = allocate_region(bytes, device, RegionKind::shared);
  if (!region) return std::unexpected(std::move(region).error());
  return space_->address_of((*region)->first.index);
}

// Programs free in one moment of a step what they allocate in another. Little of HBM all the same: what is kept there serves nobody else.
std::size_t Runtime::spare_bytes(int device) const {
  constexpr std::uint64_t kLeast = 16 << 20, kMost = 256 << 20;
  return std::clamp(mover_->hbm_bytes(device) / 64, kLeast, kMost);
}

Status Runtime::free_slabs(std::uintptr_t address) {
  if (ended_) return {};  // with all other regions
  VMEM_ASSIGN(pagetable::Region* const region, live_region(address));
  // The blocks' own marks are complete, so no stream is named.
  migration::FreeRequest request;
  request.region = region;
  request.first_granule = space_->granule_at(address);
  if (!options_.drained) return mover_->call(request);
  VMEM_ASSIGN(const auto drained, drain());
  return mover_->call(request);
}

// A thread without a usable context gets the same answer every time; its first call on a stream will say what is wrong.
std::uintptr_t Runtime::context() noexcept {
  auto context = streams_->current_context();
  return context ? reinterpret_cast<std::uintptr_t>(*context) : 0;
}

Result<std::uint64_t> Runtime::mark(const StreamId& stream) {
  VMEM_ASSIGN(migration::StreamRecord* const record,
              streams_->find(stream.handle, reinterpret_cast<CUcontext>(stream.context)));
  VMEM_TRY(check_device(*record));
  VMEM_ASSIGN(const pagetable::Stamp marked, streams_->mark(*record));
  return marked.word();
}

bool Runtime::complete(std::uint64_t mark) { return streams_->query(pagetable::Stamp(mark)); }

// ---- hints and figures ----

Status Runtime::close_stream(vmem_stream stream) {
  // All three whatever becomes of the others: afterwards the handle may be dead.
  Status result = small_->close_stream(stream);
  if (auto closed = close_undeclared(stream); result) result = std::move(closed);
  if (auto closed = streams_->close_stream(stream); result) result = std::move(closed);
  return result;
}

Status Runtime::prefetch(const void* pointer, std::size_t bytes) {
  VMEM_ASSIGN(const Located located, locate(pointer, bytes));
  migration::PrefetchRequest request;
  request.run = {located.region, located.first, located.count};
  return mover_->call(request);
}

Status Runtime::advise(const void* pointer, std::size_t bytes, vmem_advice advice) {
  VMEM_ASSIGN(const Located located, locate(pointer, bytes));
  migration::AdviseRequest request;
  request.run = {located.region, located.first, located.count};
  request.advice = advice;
  return mover_->call(request);
}

Status Runtime::query(const void* pointer, vmem_pointer_info& info) {
  VMEM_ASSIGN(const Located located, locate(pointer, 1));
  migration::QueryRequest request;
  request.region = located.region;
  VMEM_TRY(mover_->call(request));
  info = request.info;
  const auto block = located.region->shared ? small_->find(reinterpret_cast<std::uintptr_t>(pointer)) : std::nullopt;
  info.base = reinterpret_cast<void*>(block ? block->base : base_of(*located.region));
  info.bytes = block ? block->bytes : located.region->bytes;
  info.page_bytes = located.region->page_bytes();
  info.device = devices_[std::size_t(located.region->device)]->ordinal;
  info.shared_pages = located.region->shared ? 1 : 0;
  return {};
}

namespace {

void add_compression(const tiers::CompressionCounters& counters, vmem_statistics& out) {
  out.nvme_compressed_bytes = counters.in_bytes;
  out.nvme_compressed_to_bytes = counters.out_bytes;
  out.nvme_compress_us = (counters.compress_ns + counters.sample_ns) / 1000;
  out.nvme_decompress_us = counters.decompress_ns / 1000;
  out.nvme_pages_fill = counters.pages[std::size_t(compress::kFill)];
  for (const compress::Codec* codec : compress::all_codecs()) {
    const std::uint64_t pages = counters.pages[std::size_t(codec->id())];
    const std::string_view name = codec->name();
    if (codec->id() == compress::kNone) {
      out.nvme_pages_as_is += pages;
    } else if (name.starts_with("shuffle")) {
      out.nvme_pages_shuffled += pages;
    } else {
      (name.starts_with("lz4") ? out.nvme_pages_lz4 : out.nvme_pages_zstd) += pages;
    }
  }
}

}  // namespace

Status Runtime::statistics(vmem_statistics& out) {
  migration::StatisticsRequest request;
  VMEM_TRY(mover_->call(request));
  out = request.statistics;
  // The mover sees one tier below host memory.
  const tiers::TierUsage files = disk_ ? disk_->usage() : tiers::TierUsage{};
  out.nvme_budget_bytes = files.budget_bytes;
  out.nvme_used_bytes = files.used_bytes;
  if (remote_) remote_->add_to(out);
  out.device_count = int(devices_.size());
  out.emulated = driver_->emulated() ? 1 : 0;
  out.space_bytes = space_->bytes();
  out.allocated_bytes += small_->live_bytes();
  out.metadata_bytes += small_->metadata_bytes();
  out.acquires = threads_->acquires();
  if (disk_) add_compression(disk_->compression(), out);
  return {};
}

Status Runtime::quiesce() {
  migration::QuiesceRequest request;
  return mover_->call(request);
}

bool Runtime::report_loss(const Error& error) {
  migration::LossReport report(error);
  return !mover_->call(report);
}

}  // namespace vmem::runtime
