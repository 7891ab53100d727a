#include "migration/mover_harness.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "gpu/emu/emu.h"
#include "migration/policy/forwarding_policy.hpp"
#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration {
namespace {

constexpr std::uint64_t kSpaceBytes = std::uint64_t{2} << 30;

const std::shared_ptr<const gpu::Driver>& emulated_driver() {
  static const std::shared_ptr<const gpu::Driver> driver = [] {
    ::setenv("VMEM_EMU", "devices=2,hbm=1GiB,host=512MiB,check_host_access=0", 1);
    return *gpu::Driver::load("emulated");
  }();
  return driver;
}

// A machine whose device was lost stays in use, and cannot be configured: only where it changes.
void step_gpu_work(bool stepped) {
  static bool now = false;
  if (std::exchange(now, stepped) == stepped) return;
  const auto configure =
      reinterpret_cast<decltype(&vmem_emu_configure)>(emulated_symbol(*emulated_driver(), "vmem_emu_configure"));
  ASSERT_EQ(configure(stepped ? "workers=0" : "", nullptr, 0), 0);
}

}  // namespace

MoverTest::~MoverTest() {
  if (mover != nullptr) finish();
}

void MoverTest::TearDown() {
  if (mover != nullptr) finish();
}

void MoverTest::start(const MachineShape& wanted) {
  shape = wanted;
  driver = emulated_driver();
  step_gpu_work(shape.stepped);
  for (int i = 0; i < shape.devices; ++i) contexts.push_back(*gpu::PrimaryContext::retain(driver, i));
  ASSERT_EQ((*driver)->cuCtxSetCurrent(contexts[0].context()), CUDA_SUCCESS);
  faults = std::make_unique<gpu::FaultInjector>(driver);
  ASSERT_EQ((*driver)->cuMemAddressReserve(&reserved, kSpaceBytes, kPageBytes << 4, 0, 0), CUDA_SUCCESS);
  space = std::move(*pagetable::AddressSpace::create(reserved, kSpaceBytes));
  threads = std::make_unique<pagetable::ThreadRegistry>();
  std::vector<StreamTable::Device> stream_devices;
  for (int i = 0; i < shape.devices; ++i) stream_devices.push_back({i, contexts[std::size_t(i)].context()});
  using Timing = StreamTable::Timing;
  streams = std::make_unique<StreamTable>(faults->driver(), stream_devices,
                                          shape.recorder == nullptr ? Timing::off : Timing::on);
  tier = make_near({CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}}, shape.host_pages);
  if (shape.lent_pages != 0) lent = make_near({CU_MEM_LOCATION_TYPE_DEVICE, {1}}, shape.lent_pages);
  if (shape.spill_pages != 0) spill = std::make_unique<ScriptedSpill>(shape.spill_pages * kPageBytes);
  if (shape.files) files = std::make_unique<ScriptedFiles>();
  if (spill != nullptr) {
    spill->straight = shape.straight;
    below_host = spill.get();
  }
  if (files != nullptr) files->straight = shape.straight;
  make_mover();
}

std::unique_ptr<ScriptedTier> MoverTest::make_near(CUmemLocation location, std::uint32_t pages) {
  tiers::NearTier::Config config;
  config.driver = faults->driver();
  std::vector<CUcontext> raw;
  for (int i = 0; i < shape.devices; ++i) {
    config.devices.push_back({contexts[std::size_t(i)].context(), i});
    raw.push_back(contexts[std::size_t(i)].context());
  }
  config.location = location;
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) config.name = "peer";
  config.budget_bytes = pages * kPageBytes;
  if (shape.stepped) config.growth = tiers::NearTier::Growth::by_owner;
  config.on_ready = [this] {
    const std::lock_guard lock(mover_life_);
    if (mover != nullptr) mover->poke();
  };
  auto near = std::move(*tiers::NearTier::create(std::move(config)));
  auto scripted = std::make_unique<ScriptedTier>(*driver, raw, std::move(near));
  scripted->grows_at_once = shape.stepped;
  // Creates all slots now, so that no answer depends on the growing thread. Slots of other page
  // sizes grow on demand.
  if (shape.page_bytes) {
    scripted->expect(*shape.page_bytes, pages);
    while (scripted->usage().ready_bytes + *shape.page_bytes <= pages * kPageBytes) std::this_thread::yield();
  }
  return scripted;
}

void MoverTest::make_mover() {
  MoverConfig config;
  config.driver = faults->driver();
  config.space = space.get();
  config.threads = threads.get();
  config.streams = streams.get();
  config.backing = tier.get();
  config.backing_ahead_bytes = shape.host_ahead_bytes;
  config.in_place = shape.in_place ? tier.get() : nullptr;
  SecondChanceOptions options;
  for (int i = 0; i < shape.devices; ++i) {
    const std::uint32_t peers = shape.peers ? (1u << shape.devices) - 1 : 1u << i;
    config.devices.push_back({i, contexts[std::size_t(i)].context(), shape.hbm_pages * kPageBytes, peers});
    options.hbm_bytes.push_back(shape.hbm_pages * kPageBytes);
  }
  if (lent != nullptr) {
    config.devices[0].lenders = {0};
    PeerTier& from = config.peer_tiers.emplace_back(
        PeerTier{.tier = lent.get(), .in_place = lent.get(), .set_budget = {}, .lender = {}});
    from.set_budget = [this](std::uint64_t bytes) { lent->set_budget(bytes); };
    from.most_bytes = shape.lent_pages * kPageBytes;
    if (shape.devices > 1) from.lender = 1;
  }
  if (shape.real_policy) {
    config.policy = make_second_chance_policy(options);
    if (shape.look_ahead) {
      config.policy = std::make_unique<testing::CountedLeaves>(
          make_look_ahead_policy({options.hbm_bytes}, std::move(config.policy)), left_ahead);
    }
    policy = nullptr;
  } else if (shape.make_policy) {
    config.policy = shape.make_policy();
  } else {
    auto scripted = std::make_unique<ScriptedPolicy>();
    policy = scripted.get();
    config.policy = std::move(scripted);
  }
  if (below_host != nullptr) {
    config.spill = below_host;
    config.spill_policy =
        make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {shape.host_pages * kPageBytes}});
  }
  config.files = files.get();
  config.published_cache_bytes = shape.cache_pages * kPageBytes;
  config.page_bytes = shape.page_bytes;
  config.shares_pages = shape.shares_pages;
  config.tries_in_place = shape.tries_in_place;
  config.acquire_wait_us = acquire_wait_us;
  config.slot_wait_us = 10 * acquire_wait_us;
  config.call_wait_us = call_wait_us;
  config.protect = shape.protect;
  config.recorder = shape.recorder;
  config.now_us = [this] { return now_us; };
  {
    const std::lock_guard lock(mover_life_);
    mover = std::make_unique<Mover>(std::move(config));
  }
  inside.emplace(*mover);
}

void MoverTest::finish() {
  for (const tiers::Direction direction : {tiers::Direction::load, tiers::Direction::store}) {
    tier->let_go(direction);
    if (lent != nullptr) lent->let_go(direction);
  }
  if (spill != nullptr) spill->let_go();
  if (files != nullptr) files->let_go();
  const bool alive = !inside->lost();
  if (alive) {
    check();
    EndAllRequest end;
    const Status ended = ask(end);
    EXPECT_TRUE(ended) << ended.error().message;
    EXPECT_EQ(inside->hbm().used_bytes(), 0u);
    EXPECT_EQ(tier->usage().used_bytes, 0u);
    if (lent != nullptr) {
      EXPECT_EQ(lent->usage().used_bytes, 0u);
    }
    if (below_host != nullptr) {
      EXPECT_EQ(below_host->usage().used_bytes, 0u);
    }
    EXPECT_EQ(inside->counters().committed_bytes, 0u);
    EXPECT_EQ(space->free_bytes(), space->own_bytes());
  } else {
    for (Actor& each : actors_) (void)(*driver)->cuStreamSynchronize(each.stream);
    inside->unmap_all(*driver);
  }
  inside.reset();
  std::unique_ptr<Mover> ending;
  {
    const std::lock_guard lock(mover_life_);
    ending = std::move(mover);
  }
  ending.reset();  // without the lock: it may wait for threads that poke
  if (files != nullptr) {
    EXPECT_EQ(files->sources, 0u);
  }
  files.reset();
  below_host = nullptr;
  spill.reset();
  lent.reset();
  tier.reset();
  streams.reset();
  for (Actor& each : actors_) (void)(*driver)->cuStreamDestroy(each.stream);
  actors_.clear();
  threads.reset();
  const CUresult freed = (*driver)->cuMemAddressFree(reserved, kSpaceBytes);
  EXPECT_EQ(freed, CUDA_SUCCESS) << "a page is still mapped";
  space.reset();
  faults.reset();
  contexts.clear();
}

Actor& MoverTest::actor(int device) {
  Actor& made = actors_.emplace_back();
  made.slot = threads->claim();
  EXPECT_EQ((*driver)->cuCtxPushCurrent(contexts[std::size_t(device)].context()), CUDA_SUCCESS);
  EXPECT_EQ((*driver)->cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  EXPECT_EQ((*driver)->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  made.record = *streams->find(made.stream);
  return made;
}

Status MoverTest::ask(Request& request) {
  mover->post(request);
  if (!step_until([&] { return request.done(); })) {
    ADD_FAILURE() << "the mover hangs";
    std::abort();  // `request` is on this stack, and the mover still refers to it
  }
  return request.result();
}

void MoverTest::steps(int count) {
  for (int i = 0; i < count; ++i) {
    (void)mover->step();
    let_gpu_work();
  }
}

void MoverTest::let_gpu_work() {
  if (!shape.stepped) return std::this_thread::yield();
  static const auto run = reinterpret_cast<decltype(&vmem_emu_run)>(emulated_symbol(*driver, "vmem_emu_run"));
  (void)run(kPiecesPerStep);
}

void MoverTest::settle() {
  EXPECT_TRUE(step_until([&] { return inside->in_flight() == 0; }));
  while (mover->step() == Mover::Next::again) {
  }
}

Result<Region*> MoverTest::try_allocate(std::uint32_t pages, int device, bool slab) {
  AllocateRequest request;
  request.bytes = pages * kPageBytes;
  request.device = device;
  request.kind = slab ? RegionKind::slab : shape.undeclared ? RegionKind::undeclared : RegionKind::declared;
  VMEM_TRY(ask(request));
  return request.region;
}

Region& MoverTest::allocate(std::uint32_t pages, int device, bool slab) {
  auto region = try_allocate(pages, device, slab);
  EXPECT_TRUE(region) << region.error().message;
  return **region;
}

Region& MoverTest::map_file(std::uint32_t pages) {
  AllocateRequest request;
  request.source = files->map(pages * kPageBytes);
  const Status mapped = ask(request);
  EXPECT_TRUE(mapped) << mapped.error().message;
  return *request.region;
}

Status MoverTest::free(Region& region, Actor* last_user, bool joint) {
  FreeRequest request;
  request.joint = joint;
  request.region = &region;
  request.first_granule = region.first.index;
  if (last_user != nullptr) {
    request.last = last_user->record->open_stamp();
    VMEM_TRY(streams->close_epoch(*last_user->record));
  }
  return ask(request);
}

Status MoverTest::advise(const Range& range, vmem_advice advice) {
  AdviseRequest request;
  request.run = {range.region, range.first, range.count};
  request.advice = advice;
  return ask(request);
}

void MoverTest::prefetch(const Range& range) {
  PrefetchRequest request;
  request.run = {range.region, range.first, range.count};
  EXPECT_TRUE(ask(request));
}

std::byte* MoverTest::address(const Region& region, std::uint32_t page) const {
  return reinterpret_cast<std::byte*>(space->address_of(region.granule_of(page)));
}

std::unique_ptr<Acquire> MoverTest::begin(Actor& actor, const Range& range) {
  auto made = std::make_unique<Acquire>();
  made->actor = &actor;
  made->range = range;
  const Region& region = *range.region;
  const std::uint32_t begin = region.granule_of(range.first);
  const Span span({begin}, range.count << region.page_shift, range.access);
  made->hold = actor.slot->publish(span, {space->address_of(begin), range.count * region.page_bytes()});
  made->hit = true;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    const PageState seen = state(region, i);
    made->hit = made->hit && seen.allows(range.access) && !seen.has(PageState::kLost);
    made->hit = made->hit && !(range.needs_hbm && seen.has(PageState::kInPlace));
    made->hit = made->hit && !(range.move_to_hbm && seen.has(PageState::kWantsFrame));
  }
  made->hit = made->hit && (region.devices.load() >> actor.record->device & 1) != 0;
  if (made->hit) return made;
  made->want.run = {range.region, range.first, range.count};
  made->want.access = range.access;
  made->want.move_to_hbm = range.move_to_hbm;
  made->want.needs_hbm = range.needs_hbm;
  made->want.discard_first = range.first;
  made->want.discard_count = range.discard ? range.count : 0;
  made->request.wants = {&made->want, 1};
  mover->post(made->request);
  return made;
}

Status MoverTest::complete(Acquire& acquire) {
  if (!step_until([&] { return acquire.done(); })) {
    ADD_FAILURE() << "an acquire hangs";
    std::abort();
  }
  const Status served = acquire.hit ? Status{} : acquire.request.result();
  if (!served) {
    acquire.actor->slot->clear(acquire.hold);
    return served;
  }
  const Range& range = acquire.range;
  bool notify = false;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    Page& page = range.region->pages[i];
    const PageState seen = state(*range.region, i);
    if (seen.has(PageState::kNotify)) notify = take_notify(*range.region, page) || notify;
    if (!seen.has(PageState::kPending)) continue;
    EXPECT_EQ((*driver)->cuStreamWaitEvent(acquire.actor->stream, static_cast<CUevent>(page.ready.load()), 0),
              CUDA_SUCCESS);
  }
  if (notify) mover->poke();
  return {};
}

Status MoverTest::acquire(Actor& actor, const Range& range) {
  const auto under_way = begin(actor, range);
  return complete(*under_way);
}

void MoverTest::log_use(Actor& actor, const Range& range) {
  const Region& region = *range.region;
  const Span span({region.granule_of(range.first)}, range.count << region.page_shift, range.access);
  (void)actor.slot->log.append({span, actor.record->open_stamp()});
}

void MoverTest::withdraw(Actor& actor, const Range& range) {
  const Region& region = *range.region;
  const std::uintptr_t at = space->address_of(region.granule_of(range.first));
  const std::int64_t hold = actor.slot->find({at, range.count * region.page_bytes()}, {});
  ASSERT_GE(hold, 0);
  actor.slot->clear(std::uint32_t(hold));
}

void MoverTest::release(Actor& actor, const Range& range) {
  log_use(actor, range);
  withdraw(actor, range);
  (void)streams->count_use(*actor.record);
}

void MoverTest::fill(Actor& actor, const Range& range, unsigned char value) {
  std::byte* const to = address(*range.region, range.first);
  const std::uint64_t bytes = range.count * range.region->page_bytes();
  enqueue(*driver, actor.stream, [=] { std::memset(to, value, bytes); });
}

void MoverTest::fill_in_part(Actor& actor, const Range& range, unsigned char value) {
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    std::byte* const to = address(*range.region, i);
    enqueue(*driver, actor.stream, [=] { std::memset(to, value, kPartBytes); });
  }
}

void MoverTest::write(Actor& actor, const Range& range, unsigned char value) {
  const Status acquired = acquire(actor, range);
  ASSERT_TRUE(acquired) << acquired.error().message;
  fill(actor, range, value);
  release(actor, range);
}

void MoverTest::write_to_the_end(Actor& actor, const Range& range, unsigned char value) {
  write(actor, range, value);
  finish_work(actor);
  steps();
}

void MoverTest::finish_work(Actor& actor) {
  EXPECT_TRUE(streams->close_epoch(*actor.record));
  EXPECT_EQ((*driver)->cuStreamSynchronize(actor.stream), CUDA_SUCCESS);
}

namespace {

std::uint64_t differing(const std::byte* from, std::uint64_t bytes, unsigned char value) {
  return std::uint64_t(std::count_if(from, from + bytes, [&](std::byte each) { return each != std::byte{value}; }));
}

}  // namespace

void MoverTest::expect_bytes(Actor& actor, Region& region, std::uint32_t page, unsigned char value) {
  expect_parts(actor, region, page, value, value);
}

void MoverTest::expect_parts(Actor& actor, Region& region, std::uint32_t page, unsigned char first,
                             unsigned char rest) {
  const Range range = reading(region, page);
  const Status acquired = acquire(actor, range);
  ASSERT_TRUE(acquired) << acquired.error().message;
  const std::byte* const from = address(region, page);
  const std::uint64_t bytes = region.page_bytes();
  std::uint64_t wrong = 0;
  enqueue(*driver, actor.stream, [=, &wrong] {
    wrong = differing(from, kPartBytes, first) + differing(from + kPartBytes, bytes - kPartBytes, rest);
  });
  EXPECT_EQ((*driver)->cuStreamSynchronize(actor.stream), CUDA_SUCCESS);
  EXPECT_EQ(wrong, 0u) << "of " << bytes << " bytes of page " << page << " are not " << int(first) << ", then "
                       << int(rest);
  release(actor, range);
  finish_work(actor);
}

void MoverTest::expect_stored(Region& region, std::uint32_t page, unsigned char value) {
  expect_stored_parts(region, page, value, value);
}

void MoverTest::expect_stored_parts(Region& region, std::uint32_t page, unsigned char first, unsigned char rest) {
  OpenPageRequest open;
  open.run = {&region, page, 1};
  const Status opened = ask(open);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto* from = open.host != nullptr ? open.host : reinterpret_cast<const std::byte*>(open.device_window);
  ASSERT_NE(from, nullptr) << "page " << page << " was never written";
  const std::uint64_t wrong =
      differing(from, kPartBytes, first) + differing(from + kPartBytes, region.page_bytes() - kPartBytes, rest);
  EXPECT_EQ(wrong, 0u) << "bytes of page " << page << " are not " << int(first) << ", then " << int(rest);
  ClosePageRequest close;
  close.run = open.run;
  EXPECT_TRUE(ask(close));
}

Status MoverTest::cpu_write(Region& region, std::uint32_t page, unsigned char value) {
  OpenPageRequest open;
  open.run = {&region, page, 1};
  open.write = true;
  VMEM_TRY(ask(open));
  auto* to = open.host != nullptr ? open.host : reinterpret_cast<std::byte*>(open.device_window);
  std::memset(to, value, region.page_bytes());
  ClosePageRequest close;
  close.run = open.run;
  return ask(close);
}

void MoverTest::check() { inside->check(*driver, below_host, policy, !inside->lost()); }

}  // namespace vmem::migration
